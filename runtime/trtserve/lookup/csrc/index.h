// The n-gram index of one history: finds where the last n tokens occurred before. Deciding whether to copy from
// there, and how much, is a policy's business (policy.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "hashing.h"
#include "pages.h"

namespace trtlookup {

// Every n-gram with a following token maps to the position after its latest occurrence; each occurrence links to the
// one before it. All tokens are kept, and every hit is compared with them token by token.
//
// Memory per token, at most, from about a thousand tokens on: 4.5 bytes of tokens, 4.5 of links, 6 of table.
class NgramIndex {
  public:
    static constexpr std::size_t kMaxTokens = (std::size_t{1} << 24) - 1;  // positions are stored in 24 bits
    static constexpr int kMaxNgram = 64;
    static constexpr Token kBorder = -1;

    // `hash_bits` keeps that many bits of each hash: fewer than 64 only to provoke collisions in tests.
    explicit NgramIndex(int ngram, int hash_bits = 64);

    int ngram() const noexcept { return hash_.window(); }
    std::size_t size() const noexcept { return tokens_.size(); }
    const Token* tokens() const noexcept { return tokens_.data(); }
    const Token* end() const noexcept { return tokens_.data() + tokens_.size(); }
    std::uint64_t tail_hash() const noexcept { return tail_; }  // of the last n tokens, once there are n
    std::size_t bytes() const noexcept;                         // allocated

    // Throws std::invalid_argument for a negative token or more than kMaxTokens in all.
    void check_append(const Token* tokens, std::size_t count) const;

    // Throws what check_append() throws; then nothing has changed.
    void append(const Token* tokens, std::size_t count);

    // Appends kBorder, which stands for no token and equals none that can follow: no match spans it. Once, so that no
    // n-gram with it occurs again.
    void separate() { extend(&kBorder, 1); }

    // Forgets everything from `length` on: afterwards the index equals that of the shorter history.
    void truncate(std::size_t length);

    // The position after the latest occurrence of the n tokens that end at `tail_end` and hash to `hash`, among
    // occurrences that have a following token; 0 when there is none. No n-gram ends before position 1.
    std::size_t find(const Token* tail_end, std::uint64_t hash) const noexcept;

    // The same for this history's own last n tokens.
    std::size_t latest() const noexcept { return size() < static_cast<std::size_t>(ngram()) ? 0 : find(end(), tail_); }

    // The same for any tokens that could have followed it; the n before `tail_end` are read.
    std::size_t latest(const Token* tail_end) const noexcept {
        return size() < static_cast<std::size_t>(ngram()) ? 0 : find(tail_end, hash_.of(tail_end - ngram(), static_cast<std::size_t>(ngram())));
    }

    // The occurrence before the one `position` follows; 0 when there is none.
    std::size_t older(std::size_t position) const noexcept { return links_[position]; }

    // How many tokens before `position` equal those before `tail_end`, of which `available` exist; counts to `most`.
    int match(std::size_t position, const Token* tail_end, std::size_t available, int most) const noexcept;

  private:
    // A table entry: 24 bits of position and 8 of hash, so that most collisions are seen without touching the tokens.
    using Entry = std::uint32_t;
    static constexpr Entry kEmpty = 0;
    static std::size_t position_of(Entry entry) noexcept { return entry >> 8; }
    static Entry entry_of(std::size_t position, std::uint64_t mixed) noexcept {
        return static_cast<Entry>(position << 8) | static_cast<Entry>(mixed & 0xff);
    }

    std::uint64_t mixed(std::uint64_t state) const noexcept { return mix(state) & hash_mask_; }
    std::size_t home(std::uint64_t mixed) const noexcept {
        return static_cast<std::size_t>(((mixed >> 32) * table_.size()) >> 32);
    }
    std::size_t next(std::size_t slot) const noexcept { return ++slot == table_.size() ? 0 : slot; }
    std::uint64_t hash_before(std::size_t position) const noexcept { return hash_.of(&tokens_[position - ngram()], ngram()); }

    void extend(const Token* tokens, std::size_t count);
    void insert(std::size_t position, std::uint64_t hash) noexcept;
    void remove(std::size_t position) noexcept;
    void grow_table(std::size_t keys);
    void reserve(std::size_t count);

    WindowHash hash_;
    std::uint64_t hash_mask_;
    std::uint64_t tail_ = 0;
    std::size_t keys_ = 0;
    PagedVector<Token> tokens_;
    PagedVector<std::uint32_t> links_;  // [position] the previous position of the same n-gram, 0 for none
    PagedVector<Entry> table_;          // linear probing
};

}  // namespace trtlookup
