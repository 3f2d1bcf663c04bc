#include "shared_cache.h"

#include <algorithm>
#include <ctime>
#include <new>
#include <stdexcept>
#include <type_traits>

namespace trtlookup {

Share Share::of(std::size_t bytes) noexcept {
    std::size_t slots = 1;
    while (slots * 2 * sizeof(std::uint64_t) <= bytes / 2) slots *= 2;
    const std::size_t table = slots * sizeof(std::uint64_t);
    return {bytes, slots, bytes > table ? (bytes - table) / sizeof(std::uint32_t) : 0};
}

void ScopeText::write(Token token, bool starts) noexcept {
    const Place end = written_.load(std::memory_order_relaxed) + 1;
    begun_.store(end, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // whoever sees the token sees that it was begun
    std::atomic_ref<std::uint32_t>(ring_[cursor_])
        .store(static_cast<std::uint32_t>(token) | (starts ? kStart : 0), std::memory_order_relaxed);
    written_.store(end, std::memory_order_release);
    if (++cursor_ == ring_.size()) cursor_ = 0;
}

void ScopeText::enter(std::size_t slot, Place place, std::uint64_t mixed) noexcept {
    std::atomic_ref<Slot>(slots_[slot]).store((place << 16) | (mixed & 0xffff), std::memory_order_relaxed);
}

// Whether the key that ends at `tail_end` still stands before `place`, within one stretch.
bool ScopeText::holds(Place place, const Token* tail_end) const noexcept {
    const int n = hash_->window();
    if (place - static_cast<Place>(n) < oldest()) return false;
    for (int back = 1; back <= n; ++back) {
        std::uint32_t token = at(place - static_cast<Place>(back));
        if (back == n) token &= ~kStart;  // the key's first token may start the stretch
        if (token != static_cast<std::uint32_t>(tail_end[-back])) return false;
    }
    return true;
}

// The slot of the key that ends at `tail_end`, kNone when no slot of its set is its own or its text is overwritten.
std::size_t ScopeText::find(const Token* tail_end, std::uint64_t mixed) const noexcept {
    const std::size_t set = set_of(mixed);
    for (std::size_t slot = set; slot < set + ways(); ++slot) {
        const Slot entry = slots_[slot];
        if (entry != 0 && (entry & 0xffff) == (mixed & 0xffff) && holds(entry >> 16, tail_end)) return slot;
    }
    return kNone;
}

// Empty slots are older than all others, overwritten text is older than what is left.
std::size_t ScopeText::oldest_slot(std::uint64_t mixed) const noexcept {
    const std::size_t set = set_of(mixed);
    std::size_t oldest = set;
    for (std::size_t slot = set + 1; slot < set + ways(); ++slot)
        if (slots_[slot] >> 16 < slots_[oldest] >> 16) oldest = slot;
    return oldest;
}

// Walks the document once. A token is known while the entry of the key before it already predicts it: then nothing is
// stored. A stretch of the document that is not known goes to the ring, with the key before it, and with known runs
// shorter than kKnownRun inside it, so that it stays one piece; a longer run ends the stretch.
std::size_t ScopeText::insert(const Token* tokens, std::size_t count) noexcept {
    const auto n = static_cast<std::size_t>(hash_->window());
    const Place before = written_;
    std::uint64_t state = hash_->of(tokens, n);
    bool open = false;      // a stretch is being written
    std::size_t known = 0;  // tokens predicted in a row
    for (std::size_t i = n; i < count; ++i) {
        const std::uint64_t mixed = mix(state);
        const std::size_t slot = find(tokens + i, mixed);
        if (slot != kNone && at(slots_[slot] >> 16) == static_cast<std::uint32_t>(tokens[i])) {
            if (++known == SharedCache::kKnownRun) open = false;
        } else {
            const std::size_t context = open ? known : n;
            for (std::size_t j = i - context; j < i; ++j) write(tokens[j], !open && j == i - context);
            open = true;
            known = 0;
            enter(slot != kNone ? slot : oldest_slot(mixed), written_, mixed);
            write(tokens[i], false);
        }
        if (i + 1 < count) state = hash_->roll(state, tokens[i - n], tokens[i]);
    }
    return static_cast<std::size_t>(written_ - before);
}

ScopeText::Found ScopeText::copy(const Token* tail_end, std::size_t available, int limit, int most_match,
                                 Token* out) const noexcept {
    const auto n = static_cast<std::size_t>(hash_->window());
    if (available < n) return {0, 0};
    const std::size_t slot = find(tail_end, mix(hash_->of(tail_end - n, n)));
    if (slot == kNone) return {0, 0};
    const Place place = slots_[slot] >> 16;
    const Place end = written_.load(std::memory_order_relaxed);
    int count = 0;
    for (Place p = place; count < limit && p < end; ++p) {
        const std::uint32_t token = at(p);
        if (token & kStart) break;
        out[count++] = static_cast<Token>(token);
    }
    std::size_t match = n;
    const std::size_t most = std::min({available, static_cast<std::size_t>(most_match), static_cast<std::size_t>(place - oldest())});
    while (match < most && !(at(place - match) & kStart)) {
        const std::uint32_t token = at(place - match - 1) & ~kStart;
        if (token != static_cast<std::uint32_t>(tail_end[-1 - static_cast<std::ptrdiff_t>(match)])) break;
        ++match;
    }
    return {count, static_cast<int>(match)};
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
    saved.indexed.resize((saved.tokens.size() + 7) / 8);
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
        const Place place = load(slots_[slot]) >> 16;
        if (place < kept + static_cast<Place>(hash_->window()) || place >= end) continue;
        const auto i = static_cast<std::size_t>(place - kept);
        saved.indexed[i / 8] = static_cast<std::uint8_t>(saved.indexed[i / 8] | 1u << (i % 8));
    }
    return saved;
}

// Entries are made in the order of their places, so in a smaller table the newest of a set stay, as they would have.
// A set is fetched some tokens before it is written: each lies in another part of the table.
void ScopeText::restore(const std::uint32_t* tokens, std::size_t count, const std::uint8_t* indexed) noexcept {
    constexpr std::size_t kAhead = 16;
    struct Entry {
        std::uint64_t mixed;
        Place place;  // 0: none
    };
    const auto n = static_cast<std::size_t>(hash_->window());
    const std::size_t first = count > ring_.size() ? count - ring_.size() : 0;
    Entry ahead[kAhead] = {};
    const auto enter_fetched = [&](Entry& entry) {
        if (entry.place != 0) enter(oldest_slot(entry.mixed), entry.place, entry.mixed);
        entry.place = 0;
    };
    std::uint64_t state = 0;
    std::size_t run = 0;  // tokens of this stretch so far
    const auto token_at = [&](std::size_t i) { return static_cast<Token>(tokens[i] & ~kStart); };
    for (std::size_t i = first; i < count; ++i) {
        Entry& entry = ahead[i % kAhead];
        enter_fetched(entry);
        const bool starts = i == first || (tokens[i] & kStart);
        if (starts) run = 0, state = 0;
        if (run >= n && (indexed[i / 8] >> (i % 8) & 1)) {
            entry = {mix(state), written_};
            __builtin_prefetch(&slots_[set_of(entry.mixed)], 1);
        }
        state = run < n ? hash_->extend(state, token_at(i)) : hash_->roll(state, token_at(i - n), token_at(i));
        write(token_at(i), starts);
        ++run;
    }
    for (std::size_t i = 0; i < kAhead; ++i) enter_fetched(ahead[(count + i) % kAhead]);
}

SharedCache::SharedCache(std::size_t budget, int scopes, int key_length, std::size_t min_share_tokens)
    : hash_(key_length, kFixedMultiplier), share_{0, 0, 0}, budget_(budget), max_scopes_(static_cast<std::size_t>(scopes)) {
    if (key_length < 1 || key_length > 64)
        throw std::invalid_argument("key_length is " + std::to_string(key_length) + "; allowed: 1 to 64");
    if (scopes < 1 || scopes > 256)
        throw std::invalid_argument("scopes is " + std::to_string(scopes) + "; allowed: 1 to 256");
    share_ = Share::of(budget / max_scopes_);
    if (share_.tokens < min_share_tokens || share_.tokens == 0)
        throw std::invalid_argument("shared cache: " + std::to_string(budget) + " bytes over " + std::to_string(scopes) +
                                    " scopes leave " + std::to_string(share_.bytes) + " bytes a scope, " +
                                    std::to_string(share_.tokens) + " tokens beside a table of " +
                                    std::to_string(share_.slots) + " entries; allowed: at least " +
                                    std::to_string(min_share_tokens) + " tokens. Give it more memory or fewer scopes");
}

SharedCache::Scope* SharedCache::touch(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    scopes_.splice(scopes_.begin(), scopes_, found->second);
    return &scopes_.front();
}

SharedCache::Scope& SharedCache::open(const std::string& name) {
    if (Scope* scope = touch(name)) return *scope;
    // The old scope's memory is given back before the new one's is taken: the budget holds at every moment.
    if (scopes_.size() == max_scopes_) {
        by_name_.erase(scopes_.back().name);
        scopes_.pop_back();
        ++evictions_;
    }
    scopes_.push_front(Scope{name, std::make_shared<ScopeText>(share_, hash_)});
    try {
        by_name_.emplace(scopes_.front().name, scopes_.begin());
    } catch (...) {
        scopes_.pop_front();
        throw;
    }
    return scopes_.front();
}

void SharedCache::insert(const std::string& scope, const Token* tokens, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
        if (tokens[i] < 0)
            throw std::invalid_argument("token " + std::to_string(i) + " is " + std::to_string(tokens[i]) +
                                        "; allowed: 0 to 2147483647");
    if (count <= static_cast<std::size_t>(key_length())) return;  // no key with a following token
    const std::lock_guard<std::mutex> lock(mutex_);
    Scope& stored = open(scope);
    tokens_ += stored.text->insert(tokens, count);
    ++stored.documents;
    stored.stored_at = static_cast<std::int64_t>(std::time(nullptr));
    ++documents_;
}

ScopeText::Found SharedCache::copy(const std::string& scope, const Token* tail_end, std::size_t available, int limit,
                                   int most_match, Token* out) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Scope* found = touch(scope);
    return found ? found->text->copy(tail_end, available, limit, most_match, out) : ScopeText::Found{0, 0};
}

SharedCacheStats SharedCache::stats() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t bytes = 0;
    for (const Scope& scope : scopes_) bytes += scope.text->bytes();
    return {bytes, budget_, scopes_.size(), evictions_, documents_, tokens_};
}

std::vector<std::string> SharedCache::names() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> names;
    for (const Scope& scope : scopes_) names.push_back(scope.name);
    return names;
}

std::optional<SavedText> SharedCache::save(const std::string& name) const {
    std::shared_ptr<const ScopeText> text;
    std::uint64_t documents = 0;
    std::int64_t stored_at = 0;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = by_name_.find(name);
        if (found == by_name_.end()) return std::nullopt;
        text = found->second->text;
        documents = found->second->documents;
        stored_at = found->second->stored_at;
    }
    SavedText saved = text->save();
    saved.documents = documents;
    saved.stored_at = stored_at;
    return saved;
}

void SharedCache::restore(const std::string& name, const std::uint32_t* tokens, std::size_t count,
                          const std::uint8_t* indexed, int key_length, std::uint64_t documents, std::int64_t stored_at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (by_name_.contains(name)) throw std::invalid_argument("restore: scope " + name + " is held already");
    Scope& scope = open(name);
    scope.documents = documents;
    scope.stored_at = stored_at;
    if (key_length == hash_.window()) {
        scope.text->restore(tokens, count, indexed);
        return;
    }
    const auto shortest = static_cast<std::size_t>(hash_.window());
    std::vector<Token> stretch;
    const auto insert = [&] {
        if (stretch.size() > shortest) scope.text->insert(stretch.data(), stretch.size());
        stretch.clear();
    };
    for (std::size_t i = 0; i < count; ++i) {
        if (tokens[i] & ScopeText::kStart) insert();
        stretch.push_back(static_cast<Token>(tokens[i] & ~ScopeText::kStart));
    }
    insert();
}

}  // namespace trtlookup
