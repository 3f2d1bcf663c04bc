// The cross-request cache: copies from finished requests of the same scope, bounded in bytes, scopes kept apart.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hashing.h"

namespace trtlookup {

// A zeroed array of a fixed size. Its pages are taken from the system when they are first written.
template <typename T>
class FixedArray {
  public:
    explicit FixedArray(std::size_t size) : size_(size), data_(static_cast<T*>(std::calloc(size, sizeof(T)))) {
        if (!data_) throw std::bad_alloc();
    }
    std::size_t size() const noexcept { return size_; }
    std::size_t bytes() const noexcept { return size_ * sizeof(T); }
    T& operator[](std::size_t i) noexcept { return data_.get()[i]; }
    const T& operator[](std::size_t i) const noexcept { return data_.get()[i]; }

  private:
    struct Free {
        void operator()(T* data) const noexcept { std::free(data); }
    };
    std::size_t size_;
    std::unique_ptr<T, Free> data_;
};

// How a scope's bytes are divided.
struct Share {
    std::size_t bytes;   // of one scope
    std::size_t slots;   // 8-byte entries: the largest power of two within half the share
    std::size_t tokens;  // 4-byte tokens: the rest

    static Share of(std::size_t bytes) noexcept;
};

// One scope's text outside the cache, as snapshots keep it: independent of the ring's and the table's size.
struct SavedText {
    std::vector<std::uint32_t> tokens;  // oldest first; bit 31 marks the first token of a stretch
    std::vector<std::uint8_t> indexed;  // bit i, least significant first: an entry of the table leads to token i
    std::uint64_t documents = 0;        // inserted, ever
    std::int64_t stored_at = 0;         // seconds since 1970 when the last of them was
};

// One scope's text: a ring of tokens and a table from keys to places in it. Knows of no other scope.
//
// The table is set-associative: a key may lie in any of the 8 slots of its set, one cache line, and a new key takes the
// set's oldest slot. With single slots, chance collisions alone would make a re-sent conversation look partly new.
//
// A place is the number of tokens ever written before it, so a place whose text was overwritten is recognised as
// older than the ring. The first token of a stored stretch carries a mark (bit 31): nothing reads across it.
class ScopeText {
  public:
    ScopeText(const Share& share, const WindowHash& hash) : hash_(&hash), slots_(share.slots), ring_(share.tokens) {}

    std::size_t bytes() const noexcept { return slots_.bytes() + ring_.bytes(); }

    // Stores a document of more than key-length tokens. Returns the tokens written to the ring.
    std::size_t insert(const Token* tokens, std::size_t count) noexcept;

    struct Found {
        int count;  // tokens copied; 0 when there is no copy
        int match;  // tokens before them that equal the tail, counted to `most_match`
    };
    // What followed the key that ends at `tail_end`: at most `limit` tokens to `out`, never past the stretch's end.
    Found copy(const Token* tail_end, std::size_t available, int limit, int most_match, Token* out) const noexcept;

    // Everything but documents and their time. May be called while another thread inserts, which is not held up by it;
    // then what was written after the call began, and what was overwritten during it, is missing.
    SavedText save() const;

    // Fills an empty scope with saved text: its newest tokens, as far as they fit, and the entries that lead to them.
    // With the key length that it was saved under, proposals and later inserts are what they would have been without
    // the detour, given the same sizes.
    void restore(const std::uint32_t* tokens, std::size_t count, const std::uint8_t* indexed) noexcept;

    static constexpr std::uint32_t kStart = 0x80000000u;

  private:
    // 48 bits of place and 16 of hash. 0 is empty: no key ends before place 1.
    using Slot = std::uint64_t;
    using Place = std::uint64_t;

    // The key's set: the first of its slots and how many there are.
    std::size_t ways() const noexcept { return slots_.size() < 8 ? slots_.size() : 8; }
    std::size_t set_of(std::uint64_t mixed) const noexcept {
        return (static_cast<std::size_t>(mixed >> 16) & (slots_.size() / ways() - 1)) * ways();
    }
    Place oldest() const noexcept { return first_in_ring(written_.load(std::memory_order_relaxed)); }
    Place first_in_ring(Place end) const noexcept { return end > ring_.size() ? end - ring_.size() : 0; }
    std::uint32_t at(Place place) const noexcept { return ring_[static_cast<std::size_t>(place % ring_.size())]; }
    static constexpr std::size_t kNone = ~std::size_t{0};
    std::size_t find(const Token* tail_end, std::uint64_t mixed) const noexcept;
    bool holds(Place place, const Token* tail_end) const noexcept;
    std::size_t oldest_slot(std::uint64_t mixed) const noexcept;
    void write(Token token, bool starts) noexcept;
    void enter(std::size_t slot, Place place, std::uint64_t mixed) noexcept;

    const WindowHash* hash_;
    FixedArray<Slot> slots_;
    FixedArray<std::uint32_t> ring_;
    // One thread writes. Another may save() meanwhile: it reads ring and slots with relaxed atomics, as they are written,
    // and finds by `begun_`, which runs ahead of the ring, which of the tokens it read may have been overwritten.
    std::atomic<Place> begun_{0};
    std::atomic<Place> written_{0};
    std::size_t cursor_ = 0;  // written_ modulo the ring's size
};

struct SharedCacheStats {
    std::size_t bytes;         // allocated now
    std::size_t budget;        // never exceeded
    std::size_t scopes;        // held now
    std::uint64_t evictions;   // scopes dropped
    std::uint64_t documents;   // inserted, ever
    std::uint64_t tokens;      // written to rings, ever
};

// All scopes. Every call locks, so that statistics can be read from any thread.
class SharedCache {
  public:
    static constexpr std::size_t kMinShareTokens = 1024;
    static constexpr int kKnownRun = 32;  // tokens predicted in a row after which the rest of a repeat is skipped

    SharedCache(std::size_t budget, int scopes, int key_length, std::size_t min_share_tokens = kMinShareTokens);

    int key_length() const noexcept { return hash_.window(); }
    const Share& share() const noexcept { return share_; }

    // Throws std::invalid_argument for a negative token and std::bad_alloc; then no text has been stored.
    void insert(const std::string& scope, const Token* tokens, std::size_t count);

    ScopeText::Found copy(const std::string& scope, const Token* tail_end, std::size_t available, int limit,
                          int most_match, Token* out);

    SharedCacheStats stats() const;

    std::vector<std::string> names() const;  // most recently used first

    // A scope's text; none for a scope that is not held. See ScopeText::save. (A scope that is dropped meanwhile keeps its
    // memory until it is saved.)
    std::optional<SavedText> save(const std::string& scope) const;

    // Makes a scope of saved text, as the most recently used. `key_length` is that of the cache that saved it: where it
    // is another than this cache's, the stretches are inserted one by one. Throws std::invalid_argument where the scope
    // is held already.
    void restore(const std::string& scope, const std::uint32_t* tokens, std::size_t count, const std::uint8_t* indexed,
                 int key_length, std::uint64_t documents, std::int64_t stored_at);

  private:
    struct Scope {
        std::string name;
        std::shared_ptr<ScopeText> text;
        std::uint64_t documents = 0;
        std::int64_t stored_at = 0;
    };
    using Scopes = std::list<Scope>;  // most recently used first

    Scope* touch(const std::string& name);
    Scope& open(const std::string& name);

    WindowHash hash_;
    Share share_;
    std::size_t budget_;
    std::size_t max_scopes_;
    mutable std::mutex mutex_;
    Scopes scopes_;
    std::unordered_map<std::string_view, Scopes::iterator> by_name_;  // keys are the names in scopes_
    std::uint64_t evictions_ = 0;
    std::uint64_t documents_ = 0;
    std::uint64_t tokens_ = 0;
};

}  // namespace trtlookup
