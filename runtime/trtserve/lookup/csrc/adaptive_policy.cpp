// Drafts by prediction, decided anew at every draft. Every way to go on is a candidate: the copy under way, the places
// around where one broke, earlier occurrences of the last tokens, long or short, and what a token that the copy names was
// replaced with before. Each has a share of having been right, learned from what such candidates were worth, in shipped
// traces first and then in this very sequence. A token's chance is judged from the shares of all that name it and from
// how well its context told what follows (judge.h); the likeliest token is drafted, and the next draft is chosen as if
// it had been accepted. The batch's rows are divided by what its drafts save (row_budget.h), and none
// are made that could not pay any more.
//
// Doubles are added and multiplied in one fixed order and nothing else is consulted, so equal calls give equal drafts.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "amendments.h"
#include "compare.h"
#include "judge.h"
#include "policy.h"
#include "recent_grams.h"

namespace trtlookup {

namespace {

constexpr int kOccurrences = 8;     // of the last n-gram, the latest ones
constexpr int kBreaks = 2;          // broken copies that are remembered
constexpr int kLost = 16;           // tokens after which one is given up,
constexpr int kFound = 8;           // or run of another copy after which all are
constexpr int kBehind = 16;         // tokens searched before the break
constexpr int kAhead = 64;          // and after it
constexpr int kSolidMatch = 16;     // a copy with this match
constexpr int kSolidRun = 8;        // and this run is not questioned: no other place is searched
constexpr int kLongRun = 8;         // a broken copy with this run is rather resumed
constexpr int kBroke = 4;           // a copy's end is a break from this match on, or this run:
constexpr int kBrokeRun = 2;
constexpr int kSharedAhead = 128;   // tokens taken from the shared cache at once, so that a copy can be resumed in them
constexpr int kSharedWays = 4;      // and of as many ways to go on
static_assert(kBehind + kAhead + 1 <= Window::kPlaces);
constexpr double kLeast = 0.03;     // drafts less likely than this are not offered
constexpr double kCertain = 0.9999;
constexpr double kAccuracy = 0.75;  // of the tokens chosen, before any was
constexpr double kForget = 0.02;    // an observation's weight in it

// A text to copy from. History goes on into the drafts themselves: a copy may run past its end, as a repeat does.
struct Text {
    const Token* tokens = nullptr;
    std::size_t size = 0;
};

// Where a text is: what the shared cache found has a number from 0 on until the round is over, then it is held or gone.
struct TextId {
    Source source = Source::none;
    std::int8_t found = -1;
};

enum class Kind : std::uint8_t { cursor, place, near, skip, amend };
constexpr int kAlone = 5;  // counts as a kind of its own: a cursor that nothing speaks against

struct Candidate {
    TextId text;
    Kind kind = Kind::cursor;
    bool resumed = false;        // it continues a copy that was resumed after a break, or resumes one
    std::uint32_t position = 0;  // of the token it names, or of the one that it amends
    Token token = 0;
    int match = 0;
    int run = 0;  // tokens the copy it continues has run for
    int cell = 0;
    double share = 0;
};

struct Cursor {
    TextId text;
    std::size_t position = 0;
    int match = 0;
    int run = 0;
    bool resumed = false;

    bool alive() const noexcept { return text.source != Source::none; }
    bool solid() const noexcept { return match >= kSolidMatch && run >= kSolidRun; }
    int cell() const noexcept { return Cells::cursor(match, run, resumed, text.source == Source::shared); }

    void advance() noexcept {
        ++position;
        match = std::min(Sources::kMostMatch, match + 1);
        ++run;
    }
};

// A copy broke: the token at `position` was not the target, and `lost` tokens came since, the target included.
struct Break {
    TextId text;
    std::size_t position = 0;
    int run = 0;
    int lost = 0;

    bool alive() const noexcept { return text.source != Source::none; }
};

struct State {
    Cursor cursor;
    std::array<Break, kBreaks> breaks;

    // Nothing but the copy under way and its amendments will be looked at, and nothing else is remembered.
    bool solid() const noexcept {
        return cursor.alive() && cursor.solid() && std::none_of(breaks.begin(), breaks.end(), [](const Break& b) { return b.alive(); });
    }
};

// One position: what could stand there, and what was chosen.
struct Step {
    static constexpr int kMost = 2 + 2 * kBreaks + kOccurrences + 3 + 1 + kSharedWays;
    static_assert(kMost <= 32, "choose() has a bit for each");

    std::array<Candidate, kMost> candidates;
    int count = 0;
    int best = -1;       // the likeliest token's likeliest candidate
    double chance = 0;   // that token's
    Token named = -1;    // by the copy under way, or the one that broke last; -1: there is none

    const Candidate* chosen() const noexcept { return best < 0 ? nullptr : &candidates[static_cast<std::size_t>(best)]; }
    const Candidate* begin() const noexcept { return candidates.data(); }
    const Candidate* end() const noexcept { return candidates.data() + count; }
};

int matching(const Text& text, std::size_t position, const Token* end, std::size_t available, int most) noexcept {
    return equal_tail(text.tokens + position, end, std::min(position, available), most);
}

class AdaptivePolicy final : public Policy {
  public:
    AdaptivePolicy(const LookupSettings& settings, const Priors& priors)
        : ngram_(settings.ngram), judge_(priors), recent_(settings.ngram - 1), odds_(priors) {}

    bool weighs() const noexcept override { return true; }

    Copy propose(const Sources& sources, int limit, Token* out, double* saved, const Outlook& outlook) override {
        judged_ = 0;
        stretched_accuracy_ = judge_.stretch(accuracy_);
        const NgramIndex& history = sources.text();
        if (limit <= 0 || history.size() == 0) return {};
        const std::size_t kept = std::min(history.size(), static_cast<std::size_t>(Sources::kMostMatch));
        tail_.resize(kept + static_cast<std::size_t>(limit));
        drafts_ = tail_.data() + kept;
        ahead_ = state_;
        Copy copy;
        Prospect prospect(outlook, limit, saved);
        drafted_ = went_on_ = 0;
        bool open = true;
        if (ahead_.solid() && history.size() >= RecentGrams::kBefore) {
            copy = first(sources, ahead_.cursor.text, ahead_.cursor.position, ahead_.cursor.match);
            open = go_on(sources, limit, out, prospect);
        }
        judged_ = went_on_;
        if (open && drafted_ < limit) std::copy_n(history.end() - kept, kept, tail_.begin());
        for (; open && drafted_ < limit; ++drafted_) {
            const auto place = static_cast<std::size_t>(drafted_ - went_on_);
            if (steps_.size() == place) steps_.emplace_back();
            Step& step = steps_[place];
            const std::size_t available = kept + static_cast<std::size_t>(drafted_);
            collect(sources, step, available);
            choose(step);
            judged_ = drafted_ + 1;
            const Candidate* best = step.chosen();
            prospect.reach(best ? step.chance : 0.0);
            if (!best || prospect.chance() < kLeast || prospect.exhausted()) break;
            if (drafted_ == 0) copy = first(sources, best->text, best->position, best->match);
            out[drafted_] = drafts_[drafted_] = best->token;
            prospect.draft();
            advance(ahead_, step, best->token);
        }
        prospect.finish();
        copy.count = drafted_;
        return copy.count > 0 ? copy : Copy{};
    }

    void keep(int count) noexcept override {
        window_ = count;
        if (count == 0) ++rounds_skipped_;
    }

    void settle(Source, int, int) override {}

    void observed(const Sources& sources, std::size_t from) override {
        const NgramIndex& history = sources.text();
        if (!begun_) {
            begun_ = true;
            prompt_ = history.size();
        } else {
            learn(sources, from);
        }
        judged_ = 0;
        recent_.extend(history.tokens(), history.size());
    }

    void rewound(std::size_t length) noexcept override {
        judged_ = 0;
        state_ = {};
        prompt_ = std::min(prompt_, length);
        recent_.truncate(length);
    }

    std::size_t bytes() const noexcept override {
        std::size_t bytes = (held_.capacity() + found_.capacity() + tail_.capacity()) * sizeof(Token) + steps_.capacity() * sizeof(Step);
        return bytes + recent_.bytes();
    }
    int window() const noexcept override { return window_; }
    bool backing_off() const noexcept override { return false; }
    std::int64_t rounds_skipped() const noexcept override { return rounds_skipped_; }

  private:
    Text text(const Sources& sources, TextId id) const noexcept {
        switch (id.source) {
            case Source::history: return {sources.text().tokens(), sources.text().size()};
            case Source::shared: return id.found < 0 ? Text{held_.data(), held_.size()} : found(id.found);
            default: return {};
        }
    }

    Text found(int i) const noexcept {
        return {found_.data() + i * kSharedAhead, static_cast<std::size_t>(found_lengths_[static_cast<std::size_t>(i)])};
    }

    // What the round's first draft says of its copy. The prediction is told apart, and its match is not what it is trusted as.
    Copy first(const Sources& sources, TextId id, std::size_t position, int match) const noexcept {
        if (id.source != Source::history || sources.source_of(position) == Source::history) return {0, id.source, match};
        const Text own = text(sources, id);
        return {0, Source::prediction, matching(own, position, own.tokens + own.size, own.size, Sources::kMostMatch)};
    }

    // ---- a solid copy ----

    // The drafts of a solid copy, as collect(), choose() and advance() would make them at several times the cost: nothing
    // else names a token, so little changes from draft to draft. Ends where an amendment might be chosen, and where the
    // copy might end. Returns whether there may be more drafts.
    bool go_on(const Sources& sources, int limit, Token* out, Prospect& prospect) noexcept {
        const NgramIndex& history = sources.text();
        Cursor& cursor = ahead_.cursor;
        const Text source = text(sources, cursor.text);
        RecentGrams::Tail tail(history.end());
        const int set = kAlone * 2 + (cursor.resumed ? 1 : 0);
        int cell = -1;
        Judge::Evidence evidence = judge_.about(set);
        bool open = true;
        for (; drafted_ < limit; ++drafted_) {
            const Token token = named(cursor.text, source, cursor.position);
            if (token < 0) break;
            const Amendments::Amendment amended = amendments_.of(token);
            if (amended.actual >= 0) break;
            if (cell != cursor.cell()) {
                cell = cursor.cell();
                const double share = odds_.chance(cell), odds = odds_of(share);
                evidence = standing(set, odds / (1.0 + odds), share);
            }
            grams_ = recent_.latest(tail, history.tokens(), history.size());
            const double given = chance(evidence, token, cursor.position, cursor.match, amended);
            if (prospect.chance(given) < kLeast) break;
            prospect.reach(given);
            drafts_[drafted_] = token;
            if (prospect.exhausted()) {
                open = false;
                break;
            }
            out[drafted_] = token;
            prospect.draft();
            tail.push(token);
            cursor.advance();
        }
        went_on_ = drafted_ + (open ? 0 : 1);
        return open;
    }

    // Learns from the tokens that go_on() judged, up to the first that was not the target. Returns how many those are.
    std::size_t learn_going_on(const Token* targets, std::size_t count) noexcept {
        Cursor& cursor = state_.cursor;
        const std::size_t most = std::min(count, static_cast<std::size_t>(went_on_));
        for (std::size_t i = 0; i < most; ++i) {
            const bool right = targets[i] == drafts_[i];
            odds_.count(cursor.cell(), right);
            amendments_.count(drafts_[i], targets[i]);
            count_choice(right);
            if (!right) {
                state_.breaks[0] = {cursor.text, cursor.position, cursor.run, 1};
                cursor = {};
                judged_ = 0;
                return i + 1;
            }
            cursor.advance();
        }
        return most;
    }

    // ---- candidates ----

    // The token at a place, -1 at the text's end or the prediction's. History goes on with the drafts.
    Token named(TextId id, const Text& text, std::size_t position) const noexcept {
        if (position < text.size) return text.tokens[position];
        const std::size_t repeated = id.source == Source::history ? static_cast<std::size_t>(drafted_) : 0;
        return position < text.size + repeated ? drafts_[position - text.size] : -1;
    }

    void add(Step& step, TextId id, const Text& text, Kind kind, std::size_t position, int match, int run, bool resumed, int cell) noexcept {
        const Token token = named(id, text, position);
        if (token < 0) return;
        Candidate& candidate = step.candidates[static_cast<std::size_t>(step.count++)];
        candidate.text = id;
        candidate.kind = kind;
        candidate.resumed = resumed;
        candidate.position = static_cast<std::uint32_t>(position);
        candidate.token = token;
        candidate.match = match;
        candidate.run = run;
        candidate.cell = cell;
        candidate.share = odds_.chance(cell);
    }

    // For the position after the history and `drafted_` drafts; `available` tokens before it are in the tail.
    void collect(const Sources& sources, Step& step, std::size_t available) {
        step.count = 0;
        const NgramIndex& history = sources.text();
        const Token* end = drafts_ + drafted_;
        grams_ = {};
        if (available >= RecentGrams::kBefore) grams_ = recent_.latest(RecentGrams::Tail(end), history.tokens(), history.size());
        const Cursor& cursor = ahead_.cursor;
        bool solid = false;
        if (cursor.alive()) {
            add(step, cursor.text, text(sources, cursor.text), Kind::cursor, cursor.position, cursor.match, cursor.run, cursor.resumed,
                cursor.cell());
            solid = step.count > 0 && cursor.solid();
        }
        if (!solid) {
            for (const Break& broken : ahead_.breaks)
                if (broken.alive()) resume(sources, step, broken, end, available);
            occurrences(history, step, end, available);
            if (drafted_ == 0) {
                anchored(sources, step);
                shared(sources, step);
            }
        }
        amend(step);
    }

    // After a break: the source's token at the same distance from it (one token for another), and where the tokens since
    // the break stand again near it (tokens left out or put in): the longest match, the nearest of those.
    void resume(const Sources& sources, Step& step, const Break& broken, const Token* end, std::size_t available) noexcept {
        const Text source = text(sources, broken.text);
        const std::size_t at = broken.position, across = at + static_cast<std::size_t>(broken.lost);
        if (across < source.size) {
            const int aligned = matching(source, across, end, available, broken.lost);
            add(step, broken.text, source, Kind::skip, across, aligned, 0, true, Cells::skip(broken.lost, aligned, broken.run >= kLongRun));
        }
        const std::size_t first = at > kBehind ? at - kBehind : 1;
        const std::size_t last = std::min(at + kAhead + 1, source.size);
        if (first >= last) return;
        const int most = static_cast<int>(std::min(static_cast<std::size_t>(broken.lost), available));
        std::array<Token, kLost + Window::kPlaces> copied;  // where the text ends within what is compared
        const Token* tokens = source.tokens + first;
        if (first < kLost || first + Window::kPlaces > source.size) {
            copied.fill(-1);
            const std::size_t before = std::min<std::size_t>(first, kLost);
            std::copy(tokens - before, source.tokens + last, copied.data() + kLost - before);
            tokens = copied.data() + kLost;
        }
        Window found = Window::of(static_cast<int>(last - first));
        int longest = 0;
        while (longest < most && found.narrow(tokens - longest - 1, end[-longest - 1])) ++longest;
        if (longest == 0) return;
        const std::size_t where = first + static_cast<std::size_t>(found.nearest(static_cast<int>(at) - static_cast<int>(first)));
        const int distance = static_cast<int>(where > at ? where - at : at - where);
        add(step, broken.text, source, Kind::near, where, longest, 0, true, Cells::near(longest, distance));
    }

    // The latest places after the last ngram, three, two and one tokens. Of those that name the same token the longest match
    // stands for all, the latest of equals; how the others vote decides its cell.
    void occurrences(const NgramIndex& history, Step& step, const Token* end, std::size_t available) noexcept {
        const Text source{history.tokens(), history.size()};
        constexpr auto kMost = static_cast<std::size_t>(kOccurrences) + 3;
        std::array<std::uint32_t, kMost> positions;
        std::array<int, kMost> matches;
        std::array<Token, kMost> tokens;
        std::size_t found = 0;
        std::size_t position = available < static_cast<std::size_t>(ngram_) ? 0 : history.latest(end);
        for (; position != 0 && found < kOccurrences; position = history.older(position)) positions[found++] = static_cast<std::uint32_t>(position);
        for (const RecentGram& gram : grams_) {
            bool known = gram.position == 0;
            for (std::size_t i = 0; i < found; ++i) known |= positions[i] == gram.position;
            if (!known) positions[found++] = static_cast<std::uint32_t>(gram.position);
        }
        int longest = 0, whole = 0;  // by the ngram, as all but those after short contexts
        for (std::size_t i = 0; i < found; ++i) {
            matches[i] = matching(source, positions[i], end, available, Sources::kMostMatch);
            tokens[i] = source.tokens[positions[i]];
            longest = std::max(longest, matches[i]);
            whole += static_cast<int>(matches[i] >= ngram_);
        }
        unsigned named = 0;  // bit i: by one before i
        for (std::size_t i = 0; i < found; ++i) {
            if (named >> i & 1) continue;
            std::uint64_t best = 0;  // match, then position
            int same = 0, all = whole;
            for (std::size_t j = i; j < found; ++j) {
                const bool equal = tokens[j] == tokens[i];
                named |= static_cast<unsigned>(equal) << j;
                best = std::max(best, equal ? static_cast<std::uint64_t>(matches[j]) << 32 | positions[j] : 0);
                same += static_cast<int>(equal & (matches[j] >= ngram_));
            }
            const auto match = static_cast<int>(best >> 32);
            if (match < ngram_) {
                all = 0;
                for (std::size_t j = 0; j < found; ++j) {
                    const bool counts = matches[j] >= match;
                    same += static_cast<int>(counts & (tokens[j] == tokens[i]));
                    all += static_cast<int>(counts);
                }
            }
            add_place(step, {Source::history, -1}, source, static_cast<std::size_t>(best & 0xffffffff), match,
                      vote(same, all - same, match < longest));
        }
    }

    static int vote(int same, int other, bool longer) noexcept {
        if (other == 0) return same >= 4 ? 2 : same >= 2 ? 1 : 0;
        if (longer) return same > other ? 6 : 7;
        return same > other ? 3 : same == other ? 4 : 5;
    }

    void add_place(Step& step, TextId id, const Text& source, std::size_t position, int match, int vote) noexcept {
        const Cursor& cursor = ahead_.cursor;
        const bool goes_on = cursor.text.source == id.source && cursor.text.found == id.found && cursor.position == position;
        add(step, id, source, Kind::place, position, match, goes_on ? cursor.run : 0, goes_on && cursor.resumed,
            Cells::place(match, vote, ahead_.breaks[0].alive()));
    }

    // The prediction is searched as part of the sequence's own text. Besides, while all output so far is its beginning,
    // what comes next in it is trusted like a copy well under way, for its author expects it.
    void anchored(const Sources& sources, Step& step) noexcept {
        const Place anchor = sources.anchor();
        if (anchor.count == 0) return;
        const TextId id{Source::history, -1};
        const Text own = text(sources, id);
        const auto position = static_cast<std::size_t>(anchor.tokens - own.tokens);
        if (ahead_.cursor.text.source == Source::history && ahead_.cursor.position == position) return;
        const int match = std::min(Sources::kMostMatch, anchor.match + kSolidMatch), run = anchor.match + kSolidRun;
        add(step, id, own, Kind::cursor, position, match, run, false, Cells::cursor(match, run, false, false));
    }

    // Whatever the shared cache knows to follow. A stretch is taken whole, to resume in it after breaks.
    void shared(const Sources& sources, Step& step) {
        if (!sources.has_shared()) return;
        const Cursor& cursor = ahead_.cursor;
        const bool under_way = cursor.text.source == Source::shared && cursor.position < held_.size();
        std::array<Way, kSharedWays> ways;
        found_.resize(kSharedWays * kSharedAhead);
        const int count = sources.shared_ways(kSharedAhead, ways.data(), kSharedWays, found_.data(), found_lengths_.data());
        for (int i = 0; i < count; ++i) {
            const Way& way = ways[static_cast<std::size_t>(i)];
            if (under_way && way.token == held_[cursor.position] && way.match <= cursor.match) continue;  // said already
            const int cell = Cells::place(way.match, Cells::kShared + vote(way.same, way.other, way.longer), ahead_.breaks[0].alive());
            add(step, {Source::shared, static_cast<std::int8_t>(i)}, found(i), Kind::place, 0, way.match, 0, false, cell);
        }
    }

    // What stood last in place of the token that the copy names, be it under way or broken.
    void amend(Step& step) noexcept {
        step.named = -1;
        if (step.count == 0) return;
        const Candidate& first = step.candidates[0];
        if (first.kind != Kind::cursor && first.kind != Kind::skip) return;
        step.named = first.token;
        const Amendments::Amendment known = amendments_.of(first.token);
        if (known.actual < 0) return;
        Candidate& amended = step.candidates[static_cast<std::size_t>(step.count++)];
        amended = first;
        amended.kind = Kind::amend;
        amended.token = known.actual;
        amended.cell = Cells::amend(known.hits, known.misses);
        amended.share = odds_.chance(amended.cell);
    }

    // ---- the choice ----

    // The likeliest token and its candidate.
    void choose(Step& step) const noexcept {
        step.best = -1;
        step.chance = 0;
        std::array<double, Step::kMost> odds;
        const auto count = static_cast<std::size_t>(step.count);
        double total = 1.0;
        for (std::size_t i = 0; i < count; ++i) {
            odds[i] = odds_of(step.candidates[i].share);
            total += odds[i];
        }
        std::uint32_t named = 0;  // bit i: by one before i
        for (std::size_t i = 0; i < count; ++i) {
            if (named >> i & 1) continue;
            std::uint32_t others = 0;
            for (std::size_t j = i + 1; j < count; ++j)
                others |= static_cast<std::uint32_t>(step.candidates[j].token == step.candidates[i].token) << j;
            named |= others;
            std::size_t best = i;
            int longest = step.candidates[i].match;
            double sum = odds[i];
            for (; others != 0; others &= others - 1) {
                const auto j = static_cast<std::size_t>(std::countr_zero(others));
                const Candidate& candidate = step.candidates[j];
                sum += odds[j];
                longest = std::max(longest, candidate.match);
                if (better(candidate, step.candidates[best])) best = j;
            }
            const double chance = judge(step, step.candidates[best], sum / total, longest);
            if (step.best < 0 || chance > step.chance) {
                step.best = static_cast<int>(best);
                step.chance = chance;
            }
        }
    }

    static double odds_of(double share) noexcept { return share / (1.0 - std::min(share, kCertain)); }

    // Of two that name the same token. The sequence's own text goes before the shared cache's unless that matches longer:
    // where both hold the same, the cache has it in pieces.
    static bool better(const Candidate& one, const Candidate& other) noexcept {
        const bool shared = one.text.source == Source::shared;
        if (shared == (other.text.source == Source::shared)) return one.share > other.share;
        return shared ? one.match > other.match : one.match >= other.match;
    }

    double judge(const Step& step, const Candidate& best, double share, int longest) const noexcept {
        const bool alone = step.count == 1 && best.kind == Kind::cursor && best.match >= kSolidMatch;
        const int set = (alone ? kAlone : static_cast<int>(best.kind)) * 2 + (best.resumed ? 1 : 0);
        const Amendments::Amendment known = step.named == best.token ? amendments_.of(step.named) : Amendments::Amendment{};
        return chance(standing(set, share, best.share), best.token, best.position, longest, known);
    }

    // What speaks for a token by where it stands among all, and
    Judge::Evidence standing(int set, double share, double likeliest) const noexcept {
        Judge::Evidence evidence = judge_.about(set);
        evidence.add(Features::share, judge_.stretch(share));
        evidence.add(Features::likeliest, judge_.stretch(likeliest));
        evidence.add(Features::accuracy, stretched_accuracy_);
        return evidence;
    }

    // what it is by that and all else. `amended` is what is known of it where it is the one that the copy names.
    double chance(Judge::Evidence evidence, Token token, std::size_t position, int longest, const Amendments::Amendment& amended) const noexcept {
        evidence.add(Features::match, judge_.log_of(longest));
        evidence.add(Features::amended, amended.hits * Judge::kOne);
        evidence.add(Features::kept, amended.misses * Judge::kOne);
        evidence.add(Features::output, position >= prompt_ ? Judge::kOne : 0);
        for (std::size_t i = 0; i < grams_.size(); ++i) {
            const RecentGram& gram = grams_[i];
            const int told = judge_.told(gram.counts);
            evidence.add(static_cast<int>(Features::context3) + static_cast<int>(i), gram.follows == token ? told : 0);
        }
        return judge_.chance(evidence);
    }

    // ---- what the round showed ----

    // Every token up to the first that was not drafted is judged by what was collected for its position.
    void learn(const Sources& sources, std::size_t from) {
        const NgramIndex& history = sources.text();
        std::size_t at = from;
        if (judged_ > 0) at += learn_going_on(history.tokens() + from, history.size() - from);
        for (; at < history.size(); ++at) {
            const Token target = history.tokens()[at];
            const auto i = static_cast<int>(at - from);
            if (i < judged_) {
                const Step& step = steps_[static_cast<std::size_t>(i - went_on_)];
                count(step, target);
                advance(state_, step, target);
                if (!step.chosen() || step.chosen()->token != target) judged_ = 0;
            } else {
                follow(sources, target);
            }
        }
        hold();
    }

    void count(const Step& step, Token target) noexcept {
        for (const Candidate& candidate : step) odds_.count(candidate.cell, candidate.token == target);
        if (step.named >= 0) amendments_.count(step.named, target);
        if (step.best >= 0) count_choice(step.chosen()->token == target);
    }

    void count_choice(bool right) noexcept { accuracy_ += ((right ? 1.0 : 0.0) - accuracy_) * kForget; }

    // `token` came where `step` was.
    static void advance(State& state, const Step& step, Token token) noexcept {
        const Candidate* const best = step.chosen();
        const Candidate* right = best && best->token == token ? best : nullptr;
        if (!right)
            for (const Candidate& candidate : step)
                if (candidate.token == token && (!right || candidate.share > right->share)) right = &candidate;
        for (Break& broken : state.breaks)
            if (broken.alive() && ++broken.lost > kLost) broken = {};
        const Candidate* const broke = broken_by(step, token);
        if (broke) remember(state, *broke);
        if (right && right->kind != Kind::amend) {
            Cursor& cursor = state.cursor;  // member by member: the compiler would go through the stack
            cursor.text = right->text;
            cursor.position = right->position + std::size_t{1};
            cursor.match = std::min(Sources::kMostMatch, right->match + 1);
            cursor.run = right->run + 1;
            cursor.resumed = right->resumed;
            if (!broke && cursor.run >= kFound && state.breaks[0].alive()) state.breaks = {};
            return;
        }
        state.cursor = {};
        if (right && !(broke && broke->position == right->position)) remember(state, *right);
    }

    // The copy that `token` ended: the one chosen or, if that was none, the one under way.
    static const Candidate* broken_by(const Step& step, Token token) noexcept {
        const auto ended = [&](const Candidate& candidate) {
            return candidate.token != token && (candidate.run >= kBrokeRun || candidate.match >= kBroke);
        };
        const Candidate* const best = step.chosen();
        if (best && best->kind != Kind::amend && ended(*best)) return best;
        const bool under_way = step.count > 0 && step.candidates[0].kind == Kind::cursor;
        return under_way && ended(step.candidates[0]) ? &step.candidates[0] : nullptr;
    }

    static void remember(State& state, const Candidate& broke) noexcept {
        std::copy_backward(state.breaks.begin(), state.breaks.end() - 1, state.breaks.end());
        state.breaks[0] = {broke.text, broke.position, broke.run, 1};
    }

    // A token came that nothing was collected for: only the copy under way is looked at.
    void follow(const Sources& sources, Token token) noexcept {
        const Cursor& cursor = state_.cursor;
        followed_.count = drafted_ = 0;
        if (cursor.alive())
            add(followed_, cursor.text, text(sources, cursor.text), Kind::cursor, cursor.position, cursor.match, cursor.run, cursor.resumed, 0);
        followed_.best = followed_.count - 1;
        advance(state_, followed_, token);
    }

    // What is copied from the shared cache's findings is kept; what else came from the cache before is gone with that.
    void hold() {
        const int found = state_.cursor.text.found >= 0 ? state_.cursor.text.found
                          : state_.breaks[0].text.found >= 0 ? state_.breaks[0].text.found : state_.breaks[1].text.found;
        if (found < 0) return;
        const auto keep = [&](auto& place) {
            if (place.text.source != Source::shared) return;
            if (place.text.found == found) place.text.found = -1;
            else place = {};
        };
        keep(state_.cursor);
        for (Break& broken : state_.breaks) keep(broken);
        if (!state_.breaks[0].alive()) std::swap(state_.breaks[0], state_.breaks[1]);
        const Text text = this->found(found);
        held_.assign(text.tokens, text.tokens + text.size);
    }

    int ngram_;
    Judge judge_;
    RecentGrams recent_;
    double accuracy_ = kAccuracy;  // of the tokens chosen, later ones counting more
    bool begun_ = false;
    std::size_t prompt_ = 0;       // its length
    State state_;
    std::vector<Token> held_, found_;  // from the shared cache: what is copied from, and those of the last search
    std::array<int, kSharedWays> found_lengths_{};

    // The round that was proposed for and not observed yet.
    std::vector<Token> tail_;         // the history's last tokens, and the drafts
    Token* drafts_ = nullptr;
    int drafted_ = 0;
    int stretched_accuracy_ = 0;
    State ahead_;                     // as if the drafts had been accepted
    RecentGrams::Grams grams_;
    int went_on_ = 0;                 // tokens that go_on() judged: they have no steps
    std::vector<Step> steps_;         // of those after them
    int judged_ = 0;                  // positions that can be learned from
    int window_ = 0;
    std::int64_t rounds_skipped_ = 0;

    // Large ones last: what every round reads lies together.
    Odds odds_;
    Amendments amendments_;
    Step followed_;
};

}  // namespace

std::unique_ptr<Policy> make_adaptive_policy(const LookupSettings& settings, const Priors& priors) {
    return std::make_unique<AdaptivePolicy>(settings, priors);
}

}  // namespace trtlookup
