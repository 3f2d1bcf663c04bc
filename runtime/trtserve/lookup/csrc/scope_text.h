// One scope's text in the cross-request cache: a ring of tokens, and a table from keys to what followed them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "hashing.h"
#include "pages.h"

namespace trtlookup {

// A zeroed array of a fixed size, in large pages where the system has them: entries of a table lie in no order, so with
// small ones most of the time would go into finding their pages.
template <typename T>
class FixedArray {
  public:
    explicit FixedArray(std::size_t size) : size_(size), data_(static_cast<T*>(zeroed_pages(bytes())), Free{bytes()}) {}
    std::size_t size() const noexcept { return size_; }
    std::size_t bytes() const noexcept { return size_ * sizeof(T); }
    T& operator[](std::size_t i) noexcept { return data_.get()[i]; }
    const T& operator[](std::size_t i) const noexcept { return data_.get()[i]; }

  private:
    struct Free {
        std::size_t bytes;
        void operator()(T* data) const noexcept { free_pages(data, bytes); }
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
    std::vector<std::uint16_t> seen;    // by token: 4 bits for each of the Keys, how often; 0: no entry leads to it
    std::uint64_t documents = 0;        // inserted, ever
    std::int64_t stored_at = 0;         // seconds since 1970 when the last of them was
};

// The keys that may lead to a token, longest first: twice the key length (64 at most), the key length, and 2 and 1
// tokens where those are shorter.
class Keys {
  public:
    static constexpr int kMost = 4;
    static constexpr int kLongest = 64;

    explicit Keys(int key_length) noexcept;

    int count() const noexcept { return count_; }
    int main() const noexcept { return main_; }  // which of them has the key length
    int length(int key) const noexcept { return hash(key).window(); }
    int key_length() const noexcept { return length(main_); }
    const WindowHash& hash(int key) const noexcept { return hashes_[static_cast<std::size_t>(key)]; }

  private:
    int count_ = 0, main_ = 0;
    std::array<WindowHash, kMost> hashes_;
};

// A token that the text may go on with. Of the places that name it the one with the longest match, the latest of equals.
struct Way {
    std::uint64_t place;
    Token token;
    int match;    // tokens before the place that equal the tail
    int same;     // how often the longest key that was followed by this token was followed by it,
    int other;    // and by others
    bool longer;  // another token has a longer match
};

// A ring of tokens and a table from keys to places in it. Knows of no other scope.
//
// An entry of the table says that a key was followed by the token at a place, and how often: a key has one for each
// token that followed it. The table is set-associative: an entry may lie in any of the 8 slots of its key's set, one
// cache line. Keys shorter than the key length have an eighth of the sets to themselves, where the rarest entry gives
// way, the oldest of equals; elsewhere it is the oldest.
//
// A place is the number of tokens ever written before it, so a place whose text was overwritten is recognised as
// older than the ring. The first token of a stored stretch carries a mark (bit 31): nothing reads across it.
class ScopeText {
  public:
    static constexpr int kKnownRun = 32;  // tokens in a row, or all to the document's end, that are not stored again
    static constexpr std::size_t kWays = 8;  // slots of a set; a table has at least one set
    static constexpr int kMostWays = static_cast<int>(kWays) * Keys::kMost;  // all entries of a tail's keys

    ScopeText(const Share& share, const Keys& keys);

    std::size_t bytes() const noexcept { return slots_.bytes() + ring_.bytes(); }

    // Stores a document of more than key-length tokens. Returns the tokens written to the ring.
    std::size_t insert(const Token* tokens, std::size_t count) noexcept;

    // What may follow the tail, of which `available` tokens exist: at most `most` ways, the longest match first, of equals
    // the most frequent, of equals the latest. Matches are counted to `most_match`.
    int ways(const Token* tail_end, std::size_t available, int most_match, Way* out, int most) const noexcept;

    // The tokens from a place on: at most `limit` to `out`, never past the stretch's end.
    int read(std::uint64_t place, int limit, Token* out) const noexcept;

    // Everything but documents and their time. May be called while another thread inserts, which is not held up by it;
    // then what was written after the call began, and what was overwritten during it, is missing.
    SavedText save() const;

    // Fills an empty scope with saved text: its newest tokens, as far as they fit, and the entries that lead to them.
    // With the key length that it was saved under, proposals and later inserts are what they would have been without
    // the detour, given the same sizes.
    void restore(const std::uint32_t* tokens, std::size_t count, const std::uint16_t* seen) noexcept;

    static constexpr std::uint32_t kStart = 0x80000000u;

  private:
    // From the top: 4 bits of how often, 44 of place, 2 of which key, 10 of its hash, 4 of the next token's. 0 is empty: no
    // key ends before place 1. So what two entries of a set are worth is told by comparing them.
    using Slot = std::uint64_t;
    using Place = std::uint64_t;
    static constexpr std::uint64_t kTag = 0xfff0;   // which key and its hash
    static constexpr std::uint64_t kNext = 0x000f;  // the next token's hash
    static constexpr std::uint64_t kMostSeen = 15;

    // Where a key's entries are, and what they have in common.
    struct Set {
        std::uint32_t first = 0;
        std::uint32_t tag = 0;
    };
    class Walk;

    // A set's slots, a bit for each, as far as their own bits tell: those of the key, and of these those of the token.
    struct Likely {
        unsigned key, token;
    };

    static Slot slot_of(Place place, std::uint64_t seen, std::uint64_t tag, std::uint32_t next) noexcept {
        return seen << 60 | place << 16 | tag | hash_of(next);
    }
    static std::uint64_t hash_of(std::uint32_t token) noexcept { return token * 0x9e3779b1u >> 28; }
    static Place place_of(Slot slot) noexcept { return slot << 4 >> 20; }
    static std::uint64_t seen_of(Slot slot) noexcept { return slot >> 60; }
    static int key_of(Slot slot) noexcept { return static_cast<int>(slot >> 14 & 3); }

    // The sets that a key may be in.
    struct Part {
        std::uint64_t first, count;
    };

    Part part(int key) const noexcept;
    static Set set_of(const Part& part, int key, std::uint64_t state) noexcept;
    Set set_of(int key, std::uint64_t state) const noexcept { return set_of(part(key), key, state); }
    Likely likely(const Set& set, Token token) const noexcept;
    void prefetch(const Set& set) const noexcept { __builtin_prefetch(&slots_[set.first], 1); }
    Place oldest() const noexcept { return first_in_ring(written_.load(std::memory_order_relaxed)); }
    Place first_in_ring(Place end) const noexcept { return end > ring_.size() ? end - ring_.size() : 0; }
    std::size_t index_of(Place place) const noexcept {  // of a place in the ring or at its end
        const auto age = static_cast<std::size_t>(written_.load(std::memory_order_relaxed) - place);
        return cursor_ >= age ? cursor_ - age : cursor_ + ring_.size() - age;
    }
    std::uint32_t at(Place place) const noexcept { return ring_[index_of(place)]; }
    bool holds(Place place) const noexcept { return place >= oldest() && place < written_.load(std::memory_order_relaxed); }
    int match(Place place, const Token* tail_end, std::size_t available, int most) const noexcept;
    bool follows(Slot slot, const Token* tail_end) const noexcept;
    std::size_t run(Place place, const Token* tokens, std::size_t count) const noexcept;
    Place repeat(const Set& set, unsigned likely, const Token* tokens, std::size_t count) const noexcept;
    void enter(const Set& set, const Token* tokens, Place place) noexcept;
    bool enter_known(const Set& set, Likely likely, const Token* tokens, Place place, std::uint64_t seen) noexcept;
    std::size_t least(const Set& set) const noexcept;
    void put(std::size_t slot, Slot value) noexcept {
        std::atomic_ref<Slot>(slots_[slot]).store(value, std::memory_order_relaxed);
    }
    void write(Token token, bool starts) noexcept;

    const Keys* keys_;
    std::size_t short_sets_, sets_;     // the table begins with the sets of short keys
    std::size_t fresh_;                 // tokens after which text that comes again is written again
    FixedArray<Slot> slots_;
    FixedArray<std::uint32_t> ring_;
    // One thread writes. Another may save() meanwhile: it reads ring and slots with relaxed atomics, as they are written,
    // and finds by `begun_`, which runs ahead of the ring, which of the tokens it read may have been overwritten.
    std::atomic<Place> begun_{0};
    std::atomic<Place> written_{0};
    std::size_t cursor_ = 0;  // written_ modulo the ring's size
};

}  // namespace trtlookup
