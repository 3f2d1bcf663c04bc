// Copies by expected gain. Every way to go on is a candidate: the copy under way, the places around where one broke, and
// earlier occurrences of the last tokens, long or short. Each has a chance to be right, learned from what such candidates
// were worth, in shipped traces first and then in this very sequence. Candidates that name the same token add up; the
// best token's best candidate is drafted, and the batch's rows are divided by the chances of its drafts (row_budget.h).
//
// Doubles are added and multiplied in one fixed order and nothing else is consulted, so equal calls give equal drafts.

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "policy.h"
#include "recent_grams.h"

namespace trtlookup {

namespace {

constexpr int kOccurrences = 8;     // of the last n-gram, the latest ones
constexpr int kLost = 16;           // tokens after which a broken copy is given up
constexpr int kBehind = 16;         // tokens searched before the break
constexpr int kAhead = 64;          // and after it
constexpr int kSolidMatch = 16;     // a copy with this match
constexpr int kSolidRun = 8;        // and this run is not questioned: nothing else is searched
constexpr int kSharedAhead = 128;   // tokens taken from the shared cache at once, so that a copy can be resumed in them
constexpr int kSharedWays = 4;    // and of as many ways to go on
constexpr double kLeast = 0.03;    // drafts less likely than this are not offered
constexpr double kCertain = 0.9999;
constexpr double kTrust = 4.0;       // observations that the sequence's trust begins with,
constexpr double kFirstTrust = 0.75; // and their outcome: unknown text deserves less than the traces' mean
constexpr int kProven = 6;           // with a match of as many tokens a draft needs no trust
constexpr double kFade = 0.95;       // what an observation keeps of its weight per round

// A text to copy from. History goes on into the drafts themselves: a copy may run past its end, as a repeat does.
struct Text {
    const Token* tokens = nullptr;
    std::size_t size = 0;
};

enum class Kind : std::uint8_t { cursor, place, near, skip };

struct Candidate {
    Source source = Source::none;
    int found = -1;            // of the shared cache: its text is what was just found under this number, not what is held
    Kind kind = Kind::cursor;
    std::size_t position = 0;  // of the token it names
    Token token = 0;
    int match = 0;
    int run = 0;  // tokens the copy it continues has run for
    bool resumed = false;  // it continues a copy that was resumed after a break, or resumes one
    int cell = 0;
    double chance = 0;
};

int matching(const Text& text, std::size_t position, const Token* end, std::size_t available, int most) noexcept {
    const std::size_t limit = std::min({position, available, static_cast<std::size_t>(most)});
    const Token* before = text.tokens + position;
    std::size_t count = 0;
    while (count < limit && before[-1 - static_cast<std::ptrdiff_t>(count)] == end[-1 - static_cast<std::ptrdiff_t>(count)])
        ++count;
    return static_cast<int>(count);
}

class AdaptivePolicy final : public Policy {
  public:
    AdaptivePolicy(const LookupSettings& settings, const Priors& priors) : ngram_(settings.ngram), odds_(priors) {}

    bool weighs() const noexcept override { return true; }

    Copy propose(const Sources& sources, int limit, Token* out, double* chances) override {
        pending_ = false;
        if (limit <= 0 || sources.text().size() == 0) return {};
        collect(sources);
        choose();
        pending_ = true;
        kept_ = accepted_ = 0;
        if (!has_best_) return {};
        const int count = offer(sources, limit, out, chances);
        return {count, best_.source, best_.source == Source::prediction ? true_match(sources) : best_.match};
    }

    void keep(int count) noexcept override {
        window_ = count;
        if (count == 0) ++rounds_skipped_;
    }

    void settle(Source, int proposed, int accepted) override {
        kept_ = proposed;
        accepted_ = accepted;
    }

    void observed(const Sources& sources, std::size_t from) override {
        const NgramIndex& history = sources.text();
        const int count = static_cast<int>(history.size() - from);
        if (pending_) {
            if (count > 0) {
                learn(history.tokens()[from]);
                advance(sources, from, count);
            }
            pending_ = false;
        } else if (count > 0) {
            follow(sources, from, count);
        }
        for (RecentGrams& grams : recent_)
            if (grams.order() < ngram_) grams.extend(history.tokens(), history.size());
    }

    void rewound(std::size_t length) noexcept override {
        pending_ = false;
        cursor_ = {};
        for (RecentGrams& grams : recent_) grams.truncate(length);
    }

    std::size_t bytes() const noexcept override {
        std::size_t bytes = (held_.capacity() + found_.capacity()) * sizeof(Token);
        for (const RecentGrams& grams : recent_) bytes += grams.bytes();
        return bytes;
    }
    int window() const noexcept override { return window_; }
    bool backing_off() const noexcept override { return false; }
    std::int64_t rounds_skipped() const noexcept override { return rounds_skipped_; }

  private:
    // Where the last copy stands. Broken: the token at `position` was not the target, and `lost` tokens came since.
    struct Cursor {
        Source source = Source::none;
        std::size_t position = 0;
        int match = 0;
        int run = 0;
        bool resumed = false;  // the copy began after a break of another
        bool broken = false;
        int lost = 0;

        bool alive() const noexcept { return source != Source::none; }
    };

    Text text(const Sources& sources, Source source) const noexcept {
        switch (source) {
            case Source::history: return {sources.text().tokens(), sources.text().size()};
            case Source::prediction: return {sources.prediction_text()->tokens(), sources.prediction_text()->size()};
            case Source::shared: return {held_.data(), held_.size()};
            default: return {};
        }
    }
    Text text(const Sources& sources, const Candidate& candidate) const noexcept {
        return candidate.found >= 0 ? found(candidate.found) : text(sources, candidate.source);
    }

    Text found(int i) const noexcept {
        return {found_.data() + i * kSharedAhead, static_cast<std::size_t>(found_lengths_[static_cast<std::size_t>(i)])};
    }

    int true_match(const Sources& sources) const noexcept {
        return matching(text(sources, best_), best_.position, sources.text().end(), sources.text().size(), Sources::kMostMatch);
    }

    // ---- candidates ----

    void add(const Text& text, Source source, Kind kind, std::size_t position, int match, int run, bool resumed, int cell) noexcept {
        if (position >= text.size) return;
        Candidate& candidate = candidates_[static_cast<std::size_t>(count_++)];
        candidate = {source, -1, kind, position, text.tokens[position], match, run, resumed, cell, odds_.chance(cell)};
    }

    void collect(const Sources& sources) {
        count_ = 0;
        if (cursor_.alive()) {
            const Text source = text(sources, cursor_.source);
            if (cursor_.broken) {
                resume(sources, source);
            } else {
                add(source, cursor_.source, Kind::cursor, cursor_.position, cursor_.match, cursor_.run, cursor_.resumed,
                    Cells::cursor(cursor_.match, cursor_.run, cursor_.resumed, cursor_.source == Source::shared));
                if (count_ > 0 && cursor_.match >= kSolidMatch && cursor_.run >= kSolidRun) return;
            }
        }
        occurrences(sources);
        predicted(sources);
        shared(sources);
    }

    // After a break: the source's token at the same distance from it (one token for another), and where the tokens since
    // the break stand again near it (tokens left out or put in): the longest match, the nearest of those.
    void resume(const Sources& sources, const Text& source) noexcept {
        const NgramIndex& history = sources.text();
        const std::size_t at = cursor_.position;
        add(source, cursor_.source, Kind::skip, at + static_cast<std::size_t>(cursor_.lost), 0, 0, true, Cells::skip(cursor_.lost));
        const std::size_t first = at > kBehind ? at - kBehind : 1;
        const std::size_t last = std::min(at + kAhead + 1, source.size);
        const Token tail = history.end()[-1];
        int longest = 0, distance = 0;
        std::size_t where = 0;
        for (std::size_t position = first; position < last; ++position) {
            if (source.tokens[position - 1] != tail) continue;
            const int match = matching(source, position, history.end(), history.size(), cursor_.lost);
            const int away = static_cast<int>(position > at ? position - at : at - position);
            if (match > longest || (match == longest && away < distance)) {
                longest = match;
                distance = away;
                where = position;
            }
        }
        if (longest > 0) add(source, cursor_.source, Kind::near, where, longest, 0, true, Cells::near(longest, distance));
    }

    // The latest places after the last ngram, three, two and one tokens. Of those that name the same token the longest match
    // stands for all, the latest of equals; how the others vote decides its cell.
    void occurrences(const Sources& sources) noexcept {
        const NgramIndex& history = sources.text();
        const Text source{history.tokens(), history.size()};
        struct Place {
            std::size_t position;
            int match;
        };
        std::array<Place, kOccurrences + 3> places;
        int found = 0;
        std::size_t position = history.latest();
        for (int seen = 0; position != 0 && seen < kOccurrences; ++seen, position = history.older(position))
            places[static_cast<std::size_t>(found++)] = {position, matching(source, position, history.end(), history.size(), Sources::kMostMatch)};
        for (const RecentGrams& grams : recent_) {
            if (grams.order() >= ngram_ || history.size() < static_cast<std::size_t>(grams.order())) continue;
            const std::size_t latest = grams.latest(history.end());
            if (latest == 0 || latest >= history.size()) continue;
            if (std::any_of(places.begin(), places.begin() + found, [&](const Place& p) { return p.position == latest; })) continue;
            const int match = matching(source, latest, history.end(), history.size(), Sources::kMostMatch);
            if (match >= grams.order()) places[static_cast<std::size_t>(found++)] = {latest, match};
        }
        for (int i = 0; i < found; ++i) {
            const Token token = source.tokens[places[static_cast<std::size_t>(i)].position];
            Place best{0, 0};
            bool earlier = false;  // the token was named before i
            for (int j = 0; j < found; ++j) {
                const Place& place = places[static_cast<std::size_t>(j)];
                if (source.tokens[place.position] != token) continue;
                earlier = earlier || j < i;
                if (place.match > best.match || (place.match == best.match && place.position > best.position)) best = place;
            }
            if (earlier) continue;
            int same = 0, other = 0;
            bool longer = false;
            for (int j = 0; j < found; ++j) {
                const Place& place = places[static_cast<std::size_t>(j)];
                if (place.match < std::min(best.match, ngram_)) continue;
                if (source.tokens[place.position] == token) {
                    ++same;
                } else {
                    ++other;
                    longer = longer || place.match > best.match;
                }
            }
            add_place(source, Source::history, best.position, best.match, vote(same, other, longer));
        }
    }

    static int vote(int same, int other, bool longer) noexcept {
        if (other == 0) return same >= 4 ? 2 : same >= 2 ? 1 : 0;
        if (longer) return same > other ? 6 : 7;
        return same > other ? 3 : same == other ? 4 : 5;
    }

    void add_place(const Text& source, Source name, std::size_t position, int match, int vote) noexcept {
        const bool goes_on = cursor_.alive() && !cursor_.broken && cursor_.source == name && cursor_.position == position;
        add(source, name, Kind::place, position, match, goes_on ? cursor_.run : 0, goes_on && cursor_.resumed, Cells::place(match, vote));
    }

    // The prediction: while all output so far is its beginning, what comes next in it, trusted like a copy well under way,
    // for its author expects it; and the place its index finds.
    void predicted(const Sources& sources) noexcept {
        if (!sources.prediction_text()) return;
        const NgramIndex& prediction = *sources.prediction_text();
        const Text source{prediction.tokens(), prediction.size()};
        const Place anchor = sources.anchor();
        const bool followed = cursor_.source == Source::prediction && !cursor_.broken;
        if (anchor.count > 0) {
            const auto position = static_cast<std::size_t>(anchor.tokens - prediction.tokens());
            if (!followed || cursor_.position != position) {
                const int match = std::min(Sources::kMostMatch, anchor.match + kSolidMatch), run = anchor.match + kSolidRun;
                add(source, Source::prediction, Kind::cursor, position, match, run, false, Cells::cursor(match, run, false, false));
            }
        }
        const Place place = sources.prediction();
        if (place.count > 0)
            add_place(source, Source::prediction, static_cast<std::size_t>(place.tokens - prediction.tokens()), place.match, 0);
    }

    // Whatever the shared cache knows to follow. A stretch is taken whole, to resume in it after breaks.
    void shared(const Sources& sources) {
        if (!sources.has_shared()) return;
        const bool under_way = cursor_.source == Source::shared && !cursor_.broken && cursor_.position < held_.size();
        std::array<Way, kSharedWays> ways;
        found_.resize(kSharedWays * kSharedAhead);
        const int count = sources.shared_ways(kSharedAhead, ways.data(), kSharedWays, found_.data(), found_lengths_.data());
        for (int i = 0; i < count; ++i) {
            const Way& way = ways[static_cast<std::size_t>(i)];
            if (under_way && way.token == held_[cursor_.position] && way.match <= cursor_.match) continue;  // said already
            const int cell = Cells::place(way.match, Cells::kShared + vote(way.same, way.other, way.longer));
            add(found(i), Source::shared, Kind::place, 0, way.match, 0, false, cell);
            candidates_[static_cast<std::size_t>(count_ - 1)].found = i;
        }
    }

    // The token with the most odds, of all candidates that name it together, and its likeliest candidate.
    void choose() noexcept {
        has_best_ = false;
        best_share_ = 0;
        double total = 1.0;
        for (int i = 0; i < count_; ++i) total += odds_of(i);
        for (int i = 0; i < count_; ++i) {
            const Candidate& candidate = candidates_[static_cast<std::size_t>(i)];
            double share = 0;
            for (int j = 0; j < count_; ++j)
                if (candidates_[static_cast<std::size_t>(j)].token == candidate.token) share += odds_of(j);
            share /= total;
            if (!has_best_ || share > best_share_ || (candidate.token == best_.token && better(candidate, best_))) {
                best_ = candidate;
                best_share_ = share;
                has_best_ = true;
            }
        }
    }

    // Of two that name the same token. The sequence's own text goes before the shared cache's unless that matches longer:
    // where both hold the same, the cache has it in pieces.
    static bool better(const Candidate& one, const Candidate& other) noexcept {
        const bool shared = one.source == Source::shared;
        if (shared == (other.source == Source::shared)) return one.chance > other.chance;
        return shared ? one.match > other.match : one.match >= other.match;
    }

    // Chosen tokens that were right, over those expected to be: where the text repeats itself less than the shares say,
    // drafts after short matches are worth less.
    double trust() const noexcept { return std::min(1.0, (kTrust * kFirstTrust + right_) / (kTrust + expected_)); }

    double odds_of(int i) const noexcept {
        const double chance = candidates_[static_cast<std::size_t>(i)].chance;
        return chance / (1.0 - std::min(chance, kCertain));
    }

    // The best candidate's tokens with their chances: the first by all who name it, the next as a copy that goes on.
    int offer(const Sources& sources, int limit, Token* out, double* chances) const noexcept {
        const Text source = text(sources, best_);
        const bool repeats = best_.source == Source::history;
        const double trusted = trust();
        double chance = 1.0;
        int count = 0;
        for (; count < limit; ++count) {
            const std::size_t position = best_.position + static_cast<std::size_t>(count);
            if (position >= source.size && !repeats) break;
            chance *= count == 0 ? best_share_ : odds_.chance(cell_after(count));
            if (best_.match + count < kProven) chance *= trusted;
            if (chance < kLeast) break;
            out[count] = position < source.size ? source.tokens[position] : out[position - source.size];
            chances[count] = chance;
        }
        return count;
    }
    int cell_after(int drafts) const noexcept {
        return Cells::cursor(std::min(Sources::kMostMatch, best_.match + drafts), best_.run + drafts, best_.resumed, best_.source == Source::shared);
    }

    // ---- what the round showed ----

    void learn(Token target) noexcept {
        for (int i = 0; i < count_; ++i) {
            const Candidate& candidate = candidates_[static_cast<std::size_t>(i)];
            odds_.count(candidate.cell, candidate.token == target);
        }
        if (has_best_) {
            expected_ = expected_ * kFade + best_share_;
            right_ = right_ * kFade + (best_.token == target ? 1.0 : 0.0);
        }
        for (int draft = 1; draft < std::min(kept_, accepted_ + 1); ++draft) odds_.count(cell_after(draft), draft < accepted_);
    }

    // How many of the `count` tokens committed from `from` on a copy from `position` would have given.
    int agreed(const Sources& sources, const Text& source, bool repeats, std::size_t position, std::size_t from, int count) const noexcept {
        const Token* committed = sources.text().tokens() + from;
        int got = 0;
        while (got < count && (repeats || position + static_cast<std::size_t>(got) < source.size) &&
               source.tokens[position + static_cast<std::size_t>(got)] == committed[got])
            ++got;
        return got;
    }

    void advance(const Sources& sources, std::size_t from, int count) {
        if (!has_best_) {
            if (cursor_.broken) lose(count);
            else cursor_ = {};  // its text has ended
            return;
        }
        const int got = agreed(sources, text(sources, best_), best_.source == Source::history, best_.position, from, count);
        const int run = best_.run + got;
        if (got == count) {
            if (cursor_.broken && best_.kind == Kind::place && best_.match + got < 4) {
                lose(count);  // too short a match to give up the place of the break
            } else {
                hold();
                cursor_ = {best_.source, best_.position + static_cast<std::size_t>(got),
                           std::min(Sources::kMostMatch, best_.match + got), run, best_.resumed, false, 0};
            }
        } else if (run >= 2 || ((got > 0 || !cursor_.broken) && best_.match + got >= 4)) {
            hold();
            cursor_ = {best_.source, best_.position + static_cast<std::size_t>(got), 0, 0, false, true, 0};
            lose(count - got);
        } else if (cursor_.broken) {
            lose(count);
        } else {
            cursor_ = {};
        }
    }

    // Tokens were committed in a round that proposed nothing here.
    void follow(const Sources& sources, std::size_t from, int count) noexcept {
        if (!cursor_.alive()) return;
        if (cursor_.broken) return lose(count);
        const int got = agreed(sources, text(sources, cursor_.source), cursor_.source == Source::history, cursor_.position, from, count);
        cursor_.position += static_cast<std::size_t>(got);
        cursor_.match = std::min(Sources::kMostMatch, cursor_.match + got);
        cursor_.run += got;
        if (got == count) return;
        if (cursor_.run < 2) {
            cursor_ = {};
            return;
        }
        cursor_ = {cursor_.source, cursor_.position, 0, 0, false, true, 0};
        lose(count - got);
    }

    void lose(int tokens) noexcept {
        cursor_.lost += tokens;
        if (cursor_.lost > kLost) cursor_ = {};
    }

    void hold() noexcept {
        if (best_.found < 0) return;
        const Text text = found(best_.found);
        held_.assign(text.tokens, text.tokens + text.size);
    }

    int ngram_;
    Odds odds_;
    std::array<RecentGrams, 3> recent_{RecentGrams(3), RecentGrams(2), RecentGrams(1)};
    Cursor cursor_;
    std::vector<Token> held_, found_;  // from the shared cache: the cursor's text, and those of the last search
    std::array<int, kSharedWays> found_lengths_{};

    // The round that was proposed for and not observed yet.
    bool pending_ = false;
    std::array<Candidate, kOccurrences + 9 + kSharedWays> candidates_;
    int count_ = 0;
    bool has_best_ = false;
    Candidate best_;
    double best_share_ = 0;
    int kept_ = 0, accepted_ = 0;

    double expected_ = 0, right_ = 0;  // of the tokens chosen, weighed by age

    int window_ = 0;
    std::int64_t rounds_skipped_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_adaptive_policy(const LookupSettings& settings, const Priors& priors) {
    return std::make_unique<AdaptivePolicy>(settings, priors);
}

}  // namespace trtlookup
