#include "index.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace trtlookup {

namespace {

constexpr std::size_t kMinTable = 64;
constexpr std::size_t kAhead = 16;

void prefetch(const void* address) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address, 1);
#else
    (void)address;
#endif
}

// A key is a few tokens: comparing them here is sooner done than calling memcmp, as std::equal would.
bool equal(const Token* a, const Token* b, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i)
        if (a[i] != b[i]) return false;
    return true;
}

template <typename T>
void reserve_for(PagedVector<T>& vector, std::size_t size) {
    if (size > vector.capacity()) vector.reserve(std::max<std::size_t>(size + size / 8, 32));
}

}  // namespace

NgramIndex::NgramIndex(int ngram, int hash_bits)
    : hash_(ngram, secret_multiplier()),
      hash_mask_(hash_bits >= 64 ? ~std::uint64_t{0} : hash_bits <= 0 ? 0 : ~std::uint64_t{0} << (64 - hash_bits)) {
    if (ngram < 1 || ngram > kMaxNgram)
        throw std::invalid_argument("ngram is " + std::to_string(ngram) + "; allowed: 1 to " + std::to_string(kMaxNgram));
}

std::size_t NgramIndex::bytes() const noexcept {
    return tokens_.capacity() * sizeof(Token) + links_.capacity() * sizeof(std::uint32_t) +
           table_.capacity() * sizeof(Entry);
}

void NgramIndex::check_append(const Token* tokens, std::size_t count) const {
    if (count > kMaxTokens - size())
        throw std::invalid_argument("history would hold " + std::to_string(size() + count) + " tokens; allowed: at most " +
                                    std::to_string(kMaxTokens));
    for (std::size_t i = 0; i < count; ++i)
        if (tokens[i] < 0)
            throw std::invalid_argument("token " + std::to_string(i) + " is " + std::to_string(tokens[i]) +
                                        "; allowed: 0 to 2147483647");
}

void NgramIndex::append(const Token* tokens, std::size_t count) {
    check_append(tokens, count);
    extend(tokens, count);
}

void NgramIndex::extend(const Token* tokens, std::size_t count) {
    reserve(count);  // the last thing that can fail
    // Insertion is bound by the table's cache misses, so hashes are computed kAhead tokens early and their places fetched.
    const auto n = static_cast<std::size_t>(ngram());
    const std::size_t begin = size();
    tokens_.insert(tokens_.end(), tokens, tokens + count);
    links_.resize(tokens_.size());
    std::uint64_t ahead[kAhead];
    std::size_t hashed = std::max(begin, n);  // positions before it have their hash in `ahead`, or need none
    if (begin < n) tail_ = hash_.of(tokens_.data(), std::min(size(), n));
    for (std::size_t position = hashed; position < size(); ++position) {
        for (; hashed < std::min(position + kAhead, size()); ++hashed) {
            ahead[hashed % kAhead] = mixed(tail_);
            prefetch(&table_[home(ahead[hashed % kAhead])]);
            tail_ = hash_.roll(tail_, tokens_[hashed - n], tokens_[hashed]);
        }
        insert(position, ahead[position % kAhead]);
    }
}

void NgramIndex::reserve(std::size_t count) {
    reserve_for(tokens_, size() + count);
    reserve_for(links_, size() + count);
    // Every new token can add one key. Load stays at or below 4/5, and is at most 2/3 after growing.
    const std::size_t keys = keys_ + count;
    if (keys * 5 > table_.size() * 4) grow_table(keys);
}

void NgramIndex::insert(std::size_t position, std::uint64_t hash) noexcept {
    const Entry wanted = entry_of(position, hash);
    const auto n = static_cast<std::size_t>(ngram());
    const Token* key = tokens_.data() + position - n;
    for (std::size_t slot = home(hash);; slot = next(slot)) {
        const Entry entry = table_[slot];
        if (entry == kEmpty) {
            ++keys_;
            table_[slot] = wanted;
            return;
        }
        const std::size_t earlier = position_of(entry);
        if ((entry & 0xff) == (wanted & 0xff) && equal(key, tokens_.data() + earlier - n, n)) {
            links_[position] = static_cast<std::uint32_t>(earlier);
            table_[slot] = wanted;
            return;
        }
    }
}

// Undoes insert(position), the latest one not undone yet. With insertions undone in reverse order an emptied slot
// breaks no probe sequence: every key that was placed past it has been removed already.
void NgramIndex::remove(std::size_t position) noexcept {
    const std::uint64_t hash = mixed(hash_before(position));
    std::size_t slot = home(hash);
    while (position_of(table_[slot]) != position) slot = next(slot);
    if (links_[position] != 0) {
        table_[slot] = entry_of(links_[position], hash);
    } else {
        table_[slot] = kEmpty;
        --keys_;
    }
}

// The new table is filled in the order the keys first came, so that it is the one remove() expects. Links tell which
// entry each position replaces; no token is compared.
void NgramIndex::grow_table(std::size_t keys) {
    PagedVector<Entry> larger(std::max(kMinTable, keys + (keys + 1) / 2));
    table_.swap(larger);
    PagedVector<Entry>().swap(larger);  // give the old table back before the long part
    const auto n = static_cast<std::size_t>(ngram());
    std::uint64_t state = size() > n ? hash_.of(tokens_.data(), n) : 0;
    for (std::size_t position = n; position < size(); ++position) {
        const std::uint64_t hash = mixed(state);
        const std::size_t replaced = links_[position];
        std::size_t slot = home(hash);
        while (table_[slot] != kEmpty && (replaced == 0 || position_of(table_[slot]) != replaced)) slot = next(slot);
        table_[slot] = entry_of(position, hash);
        state = hash_.roll(state, tokens_[position - n], tokens_[position]);
    }
}

void NgramIndex::truncate(std::size_t length) {
    if (length > size())
        throw std::invalid_argument("cannot truncate to " + std::to_string(length) + " tokens; the history has " +
                                    std::to_string(size()));
    const auto n = static_cast<std::size_t>(ngram());
    for (std::size_t position = size(); position-- > std::max(length, n);) remove(position);
    tokens_.resize(length);
    links_.resize(length);
    const std::size_t tail = std::min(length, n);
    tail_ = hash_.of(tokens_.data() + length - tail, tail);
}

std::size_t NgramIndex::find(const Token* tail_end, std::uint64_t state) const noexcept {
    if (keys_ == 0) return 0;
    const std::uint64_t hash = mixed(state);
    const auto n = static_cast<std::size_t>(ngram());
    for (std::size_t slot = home(hash);; slot = next(slot)) {
        const Entry entry = table_[slot];
        if (entry == kEmpty) return 0;
        const std::size_t position = position_of(entry);
        if ((entry & 0xff) == (hash & 0xff) && equal(tail_end - n, tokens_.data() + position - n, n))
            return position;
    }
}

int NgramIndex::match(std::size_t position, const Token* tail_end, std::size_t available, int most) const noexcept {
    const std::size_t limit = std::min({position, available, static_cast<std::size_t>(most)});
    const Token* before = tokens_.data() + position;
    std::size_t count = 0;
    while (count < limit && before[-1 - static_cast<std::ptrdiff_t>(count)] == tail_end[-1 - static_cast<std::ptrdiff_t>(count)])
        ++count;
    return static_cast<int>(count);
}

}  // namespace trtlookup
