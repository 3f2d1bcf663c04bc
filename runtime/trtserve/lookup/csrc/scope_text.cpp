#include "scope_text.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "compare.h"

namespace trtlookup {

Share Share::of(std::size_t bytes) noexcept {
    std::size_t slots = 1;
    while (slots * 2 * sizeof(std::uint64_t) <= bytes / 2) slots *= 2;
    const std::size_t table = slots * sizeof(std::uint64_t);
    return {bytes, slots, bytes > table ? (bytes - table) / sizeof(std::uint32_t) : 0};
}

Keys::Keys(int key_length) noexcept
    : hashes_{WindowHash(1, kFixedMultiplier), WindowHash(1, kFixedMultiplier), WindowHash(1, kFixedMultiplier),
              WindowHash(1, kFixedMultiplier)} {
    const auto add = [&](int length) { hashes_[static_cast<std::size_t>(count_++)] = WindowHash(length, kFixedMultiplier); };
    const int longest = std::min(2 * key_length, kLongest);
    if (longest > key_length) add(longest);
    main_ = count_;
    add(key_length);
    for (const int length : {2, 1})
        if (length < key_length) add(length);
}

ScopeText::ScopeText(const Share& share, const Keys& keys)
    : keys_(&keys), slots_(share.slots), ring_(share.tokens) {
    const std::size_t sets = share.slots / kWays;
    const bool has_short = keys.main() + 1 < keys.count();
    short_sets_ = has_short && sets > 1 ? std::max<std::size_t>(sets / 8, 1) : 0;
    sets_ = sets - short_sets_;
    fresh_ = std::min<std::size_t>(ring_.size(), sets_ * kWays) / 2;
}

namespace {

// Copies tokens up to the first with a mark. Returns how many. A block at a time, so that the compiler can do it in SIMD.
std::size_t unmarked(const std::uint32_t* tokens, std::size_t count, Token* out) noexcept {
    constexpr std::size_t kBlock = 16;
    std::size_t done = 0;
    for (; done + kBlock <= count; done += kBlock) {
        std::uint32_t any = 0;
        for (std::size_t i = 0; i < kBlock; ++i) any |= tokens[done + i];
        if (any & ScopeText::kStart) break;
        for (std::size_t i = 0; i < kBlock; ++i) out[done + i] = static_cast<Token>(tokens[done + i]);
    }
    while (done < count && !(tokens[done] & ScopeText::kStart)) {
        out[done] = static_cast<Token>(tokens[done]);
        ++done;
    }
    return done;
}

}  // namespace

ScopeText::Part ScopeText::part(int key) const noexcept {
    return key > keys_->main() && short_sets_ > 0 ? Part{0, short_sets_} : Part{short_sets_, sets_};
}

ScopeText::Set ScopeText::set_of(const Part& part, int key, std::uint64_t state) noexcept {
    const std::uint64_t mixed = mix(state), set = part.first + ((mixed >> 32) * part.count >> 32);
    return {static_cast<std::uint32_t>(set * kWays), static_cast<std::uint32_t>(key) << 14 | static_cast<std::uint32_t>(mixed & 0x3ff) << 4};
}

// A document's keys in order, with their sets fetched some tokens before they are needed: each lies in another part of
// the table.
class ScopeText::Walk {
  public:
    Walk(const ScopeText& text, const Token* tokens, std::size_t count) noexcept
        : text_(text), keys_(*text.keys_), tokens_(tokens), count_(count) {
        states_[0] = 0;
    }

    // Called for every `i` in order, before set(key, i) of the key length's key, or where `all` of any.
    void to(std::size_t i, bool all) noexcept {
        while (next_ < count_ && next_ < i + kAhead) {
            const WindowHash& any = keys_.hash(0);
            const std::size_t end = std::min(next_ + kBlock, count_);
            for (std::size_t at = next_; at < end; ++at) states_[at % kStates] = any.extend(states_[(at - 1) % kStates], tokens_[at - 1]);
            hash(keys_.main(), next_, end);
            next_ = end;
        }
        if (!all) return;
        short_ = std::max(short_, i);
        while (short_ < next_ && short_ < i + kAhead) {
            const std::size_t end = std::min(short_ + kBlock, next_);
            for (int key = keys_.main() + 1; key < keys_.count(); ++key) hash(key, short_, end);
            short_ = end;
        }
    }

    // The set of a key that ends before `i`, of the key length or shorter.
    const Set& set(int key, std::size_t i) const noexcept { return sets_[static_cast<std::size_t>(key)][i % kSets]; }

    // That of the longer key, which is seldom asked for.
    Set longer(std::size_t i) const noexcept { return text_.set_of(0, state(keys_.hash(0), i)); }

  private:
    static constexpr std::size_t kAhead = 16, kBlock = 8, kSets = 32, kStates = 128;
    static_assert(kAhead + kBlock <= kSets && kAhead + kBlock + Keys::kLongest < kStates);

    std::uint64_t state(const WindowHash& window, std::size_t i) const noexcept {
        return window.between(states_[(i - static_cast<std::size_t>(window.window())) % kStates], states_[i % kStates]);
    }

    void hash(int key, std::size_t begin, std::size_t end) noexcept {
        const WindowHash window = keys_.hash(key);
        const Part part = text_.part(key);
        auto& sets = sets_[static_cast<std::size_t>(key)];
        for (std::size_t i = std::max(begin, static_cast<std::size_t>(window.window())); i < end; ++i) {
            const Set set = sets[i % kSets] = set_of(part, key, state(window, i));
            text_.prefetch(set);
        }
    }

    const ScopeText& text_;
    const Keys& keys_;
    const Token* tokens_;
    std::size_t count_;
    std::size_t next_ = 1, short_ = 1;  // the first places whose keys, and whose shorter keys, were not hashed yet
    std::array<std::uint64_t, kStates> states_;  // of all tokens before i, at the place of i
    std::array<std::array<Set, kSets>, Keys::kMost> sets_;
};

void ScopeText::write(Token token, bool starts) noexcept {
    const Place end = written_.load(std::memory_order_relaxed) + 1;
    begun_.store(end, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // whoever sees the token sees that it was begun
    std::atomic_ref<std::uint32_t>(ring_[cursor_])
        .store(static_cast<std::uint32_t>(token) | (starts ? kStart : 0), std::memory_order_relaxed);
    written_.store(end, std::memory_order_release);
    if (++cursor_ == ring_.size()) cursor_ = 0;
}

// Tokens before `place` that equal the tail's last, in one stretch, the first token of which may be the last of them.
int ScopeText::match(Place place, const Token* tail_end, std::size_t available, int most) const noexcept {
    const Place begin = oldest();
    if (place <= begin || place > written_.load(std::memory_order_relaxed)) return 0;
    const auto limit = static_cast<int>(
        std::min({available, static_cast<std::size_t>(most), static_cast<std::size_t>(place - begin)}));
    std::size_t index = index_of(place);
    int match = 0;
    while (match < limit) {
        index = (index == 0 ? ring_.size() : index) - 1;
        const std::uint32_t token = ring_[index];
        if ((token & ~kStart) != static_cast<std::uint32_t>(tail_end[-1 - match])) break;
        ++match;
        if (token & kStart) break;
    }
    return match;
}

// Whether the slot's key is the tail's: all of it is in the ring, in one stretch. Most often it is, or its last token differs.
bool ScopeText::follows(Slot slot, const Token* tail_end) const noexcept {
    const auto length = static_cast<std::size_t>(keys_->length(key_of(slot)));
    const Place place = place_of(slot);
    if (place < oldest() + length || place > written_.load(std::memory_order_relaxed)) return false;
    std::size_t index = index_of(place);
    for (std::size_t back = 1; back <= length; ++back) {
        index = (index == 0 ? ring_.size() : index) - 1;
        const std::uint32_t differs = ring_[index] ^ static_cast<std::uint32_t>(*(tail_end - back));
        if (differs != 0 && (differs != kStart || back < length)) return false;  // only the first of them may start a stretch
    }
    return true;
}

// How many of the tokens stand from `place` on, within its stretch.
std::size_t ScopeText::run(Place place, const Token* tokens, std::size_t count) const noexcept {
    count = std::min(count, static_cast<std::size_t>(written_.load(std::memory_order_relaxed) - place));
    std::size_t index = index_of(place), got = 0;
    while (got < count && ring_[index] == static_cast<std::uint32_t>(tokens[got])) {
        ++got;
        if (++index == ring_.size()) index = 0;
    }
    return got;
}

ScopeText::Likely ScopeText::likely(const Set& set, Token token) const noexcept {
    const Slot* const slots = &slots_[set.first];
    const std::uint32_t wanted = set.tag | static_cast<std::uint32_t>(hash_of(static_cast<std::uint32_t>(token)));
    return {equal_low(slots, kTag, set.tag), equal_low(slots, kTag | kNext, wanted)};
}

// The latest place after the key that ends at `tokens` from which all `count` of them stand; 0 when there is none that is
// fresh enough. Only the `likely` slots may have it.
ScopeText::Place ScopeText::repeat(const Set& set, unsigned likely, const Token* tokens, std::size_t count) const noexcept {
    const Place end = written_.load(std::memory_order_relaxed);
    const Place none = end > fresh_ ? end - fresh_ : 0;  // a place before it is worth being written again
    Place latest = none;
    for (; likely != 0; likely &= likely - 1) {
        const Slot entry = slots_[set.first + static_cast<std::size_t>(std::countr_zero(likely))];
        const Place place = place_of(entry);
        if (place <= latest || !holds(place)) continue;
        if (run(place, tokens, count) == count && follows(entry, tokens)) latest = place;
    }
    return latest == none ? 0 : latest;
}

// The slot whose entry is worth least: the oldest, an empty one before all; of short keys one of overwritten text, else
// the rarest, the oldest of equals.
inline std::size_t ScopeText::least(const Set& set) const noexcept {
    const Slot* const slots = &slots_[set.first];
    if (set.first >= short_sets_ * kWays) return set.first + least_of<false>(slots, 0);
    return set.first + least_of<true>(slots, (oldest() + 1) << 16);
}

// The key that ends before tokens[0] was followed by it, at `place`.
inline void ScopeText::enter(const Set& set, const Token* tokens, Place place) noexcept {
    const Likely known = likely(set, tokens[0]);
    if (known.token == 0) {
        put(least(set), slot_of(place, 1, set.tag, static_cast<std::uint32_t>(tokens[0])));
    } else {
        enter_known(set, known, tokens, place, 1);
    }
}

// The same where that may be known, `seen` times more. Returns whether the key has been followed before: by another token,
// or by this one.
bool ScopeText::enter_known(const Set& set, Likely likely, const Token* tokens, Place place, std::uint64_t seen) noexcept {
    const auto token = static_cast<std::uint32_t>(tokens[0]);
    for (unsigned of = likely.token; of != 0; of &= of - 1) {
        const std::size_t slot = set.first + static_cast<std::size_t>(std::countr_zero(of));
        const Slot entry = slots_[slot];
        const Place other = place_of(entry);
        if (!holds(other) || (at(other) & ~kStart) != token || !follows(entry, tokens)) continue;
        const Slot now = slot_of(std::max(place, other), std::min(seen_of(entry) + seen, kMostSeen), set.tag, token);
        if (now != entry) put(slot, now);
        return true;
    }
    bool others = false;
    for (unsigned of = likely.key; of != 0 && !others; of &= of - 1)
        others = follows(slots_[set.first + static_cast<std::size_t>(std::countr_zero(of))], tokens);
    put(least(set), slot_of(place, 1, set.tag, token));
    return others;
}

// Walks the document once. A repeat is found where all of the next kKnownRun tokens, or all that are left, stand after an
// earlier occurrence of the key before them: then nothing is stored as long as it goes on, and only entries that were
// lost are made again. A place that will be overwritten before long does not count, so that text in use stays. What is
// between repeats is a stretch of its own, stored with the key before it.
std::size_t ScopeText::insert(const Token* tokens, std::size_t count) noexcept {
    const int main = keys_->main(), keys = keys_->count();
    const auto n = static_cast<std::size_t>(keys_->key_length());
    const auto longer = static_cast<std::size_t>(keys_->length(0));
    const Place before = written_;
    Walk walk(*this, tokens, count);
    bool open = false;      // a stretch is being written,
    std::size_t begin = 0;  // from this token of the document on
    for (std::size_t i = n; i < count; ++i) {
        walk.to(i, true);
        const Set& key = walk.set(main, i);
        const Likely known = likely(key, tokens[i]);
        if (known.token != 0) {
            if (const Place from = repeat(key, known.token, tokens + i, std::min<std::size_t>(kKnownRun, count - i)); from != 0) {
                const std::size_t length = run(from, tokens + i, count - i);
                for (std::size_t j = 0; j < length; ++j) {
                    walk.to(i + j, false);
                    const Set& set = walk.set(main, i + j);
                    enter_known(set, likely(set, tokens[i + j]), tokens + i + j, from + j, 0);
                }
                i += length - 1;
                open = false;
                continue;
            }
        }
        if (!open) {
            open = true;
            begin = i - n;
            for (std::size_t j = begin; j < i; ++j) write(tokens[j], j == begin);
        }
        const Place place = written_.load(std::memory_order_relaxed);
        write(tokens[i], false);
        if (known.key == 0) {
            put(least(key), slot_of(place, 1, key.tag, static_cast<std::uint32_t>(tokens[i])));
        } else if (enter_known(key, known, tokens + i, place, 1) && main > 0 && i - begin >= longer) {
            enter(walk.longer(i), tokens + i, place);
        }
        for (int other = main + 1; other < keys; ++other) enter(walk.set(other, i), tokens + i, place);
    }
    return static_cast<std::size_t>(written_ - before);
}

int ScopeText::ways(const Token* tail_end, std::size_t available, int most_match, Way* out, int most) const noexcept {
    std::array<Set, Keys::kMost> sets;
    int first_key = 0;
    while (first_key < keys_->count() && available < static_cast<std::size_t>(keys_->length(first_key))) ++first_key;
    for (int key = first_key; key < keys_->count(); ++key) {
        const int length = keys_->length(key);
        Set& set = sets[static_cast<std::size_t>(key)];
        set = set_of(key, keys_->hash(key).of(tail_end - length, static_cast<std::size_t>(length)));
        prefetch(set);
    }
    // Which entries may be of the tail's keys is seen before any text is read, so that the text is fetched all at once.
    std::array<Slot, kMostWays> entries;
    int count = 0;
    for (int key = first_key; key < keys_->count(); ++key) {
        const Set& set = sets[static_cast<std::size_t>(key)];
        for (unsigned of = equal_low(&slots_[set.first], kTag, set.tag); of != 0; of &= of - 1) {
            const Slot entry = slots_[set.first + static_cast<std::size_t>(std::countr_zero(of))];
            if (!holds(place_of(entry))) continue;
            entries[static_cast<std::size_t>(count++)] = entry;
            __builtin_prefetch(&ring_[index_of(place_of(entry))]);
        }
    }
    std::array<Way, kMostWays> found;
    std::array<std::array<int, Keys::kMost>, kMostWays> seen;
    std::array<int, Keys::kMost> total{};
    int size = 0, longest = 0;
    for (int n = 0; n < count; ++n) {
        const Slot entry = entries[static_cast<std::size_t>(n)];
        const Place place = place_of(entry);
        const int key = key_of(entry), times = static_cast<int>(seen_of(entry));
        const int length = match(place, tail_end, available, most_match);
        if (length < keys_->length(key)) continue;
        const auto token = static_cast<Token>(at(place) & ~kStart);
        int i = 0;
        while (i < size && found[static_cast<std::size_t>(i)].token != token) ++i;
        Way& way = found[static_cast<std::size_t>(i)];
        if (i == size) {
            ++size;
            way = {place, token, length, 0, 0, false};
            seen[static_cast<std::size_t>(i)] = {};
        } else if (length > way.match || (length == way.match && place > way.place)) {
            way.place = place;
            way.match = length;
        }
        seen[static_cast<std::size_t>(i)][static_cast<std::size_t>(key)] += times;
        total[static_cast<std::size_t>(key)] += times;
        longest = std::max(longest, length);
    }
    for (int i = 0; i < size; ++i) {
        const auto& counts = seen[static_cast<std::size_t>(i)];
        std::size_t key = 0;
        while (key + 1 < counts.size() && counts[key] == 0) ++key;
        Way& way = found[static_cast<std::size_t>(i)];
        way.same = counts[key];
        way.other = total[key] - counts[key];
        way.longer = longest > way.match;
    }
    most = std::min(most, size);
    std::partial_sort(found.begin(), found.begin() + most, found.begin() + size, [](const Way& a, const Way& b) {
        if (a.match != b.match) return a.match > b.match;
        return a.same != b.same ? a.same > b.same : a.place > b.place;
    });
    std::copy_n(found.begin(), most, out);
    return most;
}

int ScopeText::read(std::uint64_t place, int limit, Token* out) const noexcept {
    const Place end = written_.load(std::memory_order_relaxed);
    if (place < oldest() || place >= end) return 0;
    const std::size_t first = index_of(place);
    const std::size_t most = std::min<std::size_t>(static_cast<std::size_t>(limit), static_cast<std::size_t>(end - place));
    const std::size_t straight = std::min(most, ring_.size() - first);
    std::size_t count = unmarked(&ring_[first], straight, out);
    if (count == straight) count += unmarked(&ring_[0], most - straight, out + straight);
    return static_cast<int>(count);
}

// A place's text never changes, so it does not matter when each token is read, as long as it is before the ring comes
// round to it. An entry is one word, and one made after `end` was read leads past it.
SavedText ScopeText::save() const {
    const Place end = written_.load(std::memory_order_acquire);
    const Place first = first_in_ring(end);
    SavedText saved;
    saved.tokens.resize(static_cast<std::size_t>(end - first));
    // atomic_ref is for objects that are not const; these are only read.
    const auto load = [](const auto& word) {
        using Word = std::remove_const_t<std::remove_reference_t<decltype(word)>>;
        return std::atomic_ref<Word>(const_cast<Word&>(word)).load(std::memory_order_relaxed);
    };
    for (std::size_t i = 0, at = static_cast<std::size_t>(first % ring_.size()); i < saved.tokens.size(); ++i) {
        saved.tokens[i] = load(ring_[at]);
        if (++at == ring_.size()) at = 0;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    const Place kept = std::min(std::max(first, first_in_ring(begun_.load(std::memory_order_relaxed))), end);
    saved.tokens.erase(saved.tokens.begin(), saved.tokens.begin() + static_cast<std::ptrdiff_t>(kept - first));
    if (!saved.tokens.empty()) saved.tokens.front() |= kStart;  // what is left of its stretch
    saved.seen.resize(saved.tokens.size());
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
        const Slot entry = load(slots_[slot]);
        const Place place = place_of(entry);
        if (place < kept + static_cast<Place>(keys_->length(key_of(entry))) || place >= end) continue;
        std::uint16_t& seen = saved.seen[static_cast<std::size_t>(place - kept)];
        seen = static_cast<std::uint16_t>(seen | seen_of(entry) << 4 * key_of(entry));
    }
    return saved;
}

// Entries are made in the order of their places, so in a smaller table the newest of a set stay, as they would have.
void ScopeText::restore(const std::uint32_t* tokens, std::size_t count, const std::uint16_t* seen) noexcept {
    constexpr std::size_t kAhead = 32;  // entries between fetching a set and writing to it
    struct Entry {
        Set set;
        Slot value = 0;
    };
    std::array<Entry, kAhead> ahead;
    std::size_t entries = 0;
    const auto put_fetched = [&](Entry& entry) {
        if (entry.value != 0) put(least(entry.set), entry.value);
        entry.value = 0;
    };
    const std::size_t first = count > ring_.size() ? count - ring_.size() : 0;
    std::array<std::uint64_t, Keys::kMost> states{};
    std::size_t run = 0;  // tokens of this stretch so far
    const auto token_at = [&](std::size_t i) { return static_cast<Token>(tokens[i] & ~kStart); };
    for (std::size_t i = first; i < count; ++i) {
        const bool starts = i == first || (tokens[i] & kStart);
        if (starts) run = 0;
        for (int key = 0; key < keys_->count(); ++key) {
            const auto length = static_cast<std::size_t>(keys_->length(key));
            std::uint64_t& state = states[static_cast<std::size_t>(key)];
            if (starts) state = 0;
            const std::uint64_t times = seen[i] >> 4 * key & 15;
            if (run >= length && times != 0) {
                Entry& entry = ahead[entries++ % kAhead];
                put_fetched(entry);
                entry.set = set_of(key, state);
                entry.value = slot_of(written_.load(std::memory_order_relaxed), times, entry.set.tag, tokens[i] & ~kStart);
                prefetch(entry.set);
            }
            state = run < length ? keys_->hash(key).extend(state, token_at(i))
                                 : keys_->hash(key).roll(state, token_at(i - length), token_at(i));
        }
        write(token_at(i), starts);
        ++run;
    }
    for (std::size_t i = 0; i < kAhead; ++i) put_fetched(ahead[(entries + i) % kAhead]);
}

}  // namespace trtlookup
