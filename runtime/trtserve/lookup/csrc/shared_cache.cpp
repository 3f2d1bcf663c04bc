#include "shared_cache.h"

#include <algorithm>
#include <new>
#include <stdexcept>

namespace trtlookup {

Share Share::of(std::size_t bytes) noexcept {
    std::size_t slots = 1;
    while (slots * 2 * sizeof(std::uint64_t) <= bytes / 2) slots *= 2;
    const std::size_t table = slots * sizeof(std::uint64_t);
    return {bytes, slots, bytes > table ? (bytes - table) / sizeof(std::uint32_t) : 0};
}

void ScopeText::write(Token token, bool starts) noexcept {
    ring_[cursor_] = static_cast<std::uint32_t>(token) | (starts ? kStart : 0);
    if (++cursor_ == ring_.size()) cursor_ = 0;
    ++written_;
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
            slots_[slot != kNone ? slot : oldest_slot(mixed)] = (written_ << 16) | (mixed & 0xffff);
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
    int count = 0;
    for (Place p = place; count < limit && p < written_; ++p) {
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
    scopes_.push_front(Scope{name, ScopeText(share_, hash_)});
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
    tokens_ += open(scope).text.insert(tokens, count);
    ++documents_;
}

ScopeText::Found SharedCache::copy(const std::string& scope, const Token* tail_end, std::size_t available, int limit,
                                   int most_match, Token* out) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Scope* found = touch(scope);
    return found ? found->text.copy(tail_end, available, limit, most_match, out) : ScopeText::Found{0, 0};
}

SharedCacheStats SharedCache::stats() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t bytes = 0;
    for (const Scope& scope : scopes_) bytes += scope.text.bytes();
    return {bytes, budget_, scopes_.size(), evictions_, documents_, tokens_};
}

}  // namespace trtlookup
