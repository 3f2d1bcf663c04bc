// The cross-request cache: copies from finished requests of the same scope, bounded in bytes, scopes kept apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "scope_text.h"

namespace trtlookup {

struct SharedCacheStats {
    std::size_t bytes;         // allocated now
    std::size_t budget;        // never exceeded
    std::size_t scopes;        // held now
    std::uint64_t evictions;   // scopes dropped
    std::uint64_t documents;   // inserted, ever
    std::uint64_t tokens;      // written to rings, ever
};

// All scopes. Every call locks, so that statistics can be read, and texts saved, from any thread.
class SharedCache {
  public:
    static constexpr std::size_t kMinShareTokens = 1024;

    // Called by a thread that finds the cache locked: returns when it has been unlocked, or may have been.
    using Wait = void (*)(std::mutex&);
    static void wait(std::mutex& mutex) { const std::lock_guard<std::mutex> lock(mutex); }

    SharedCache(std::size_t budget, int scopes, int key_length, std::size_t min_share_tokens = kMinShareTokens,
                Wait wait = &SharedCache::wait);

    // No other call gets further until the lock is given up.
    std::unique_lock<std::mutex> lock() const;

    int key_length() const noexcept { return keys_.key_length(); }
    const Share& share() const noexcept { return share_; }

    // Throws std::invalid_argument for a negative token and std::bad_alloc; then no text has been stored.
    void insert(const std::string& scope, const Token* tokens, std::size_t count);

    struct Found {
        int count;  // tokens copied; 0 when there is no copy
        int match;  // tokens before them that equal the tail, counted to `most_match`
    };
    // What followed the longest match that ends at `tail_end`, if it spans the key length: at most `limit` tokens.
    Found copy(const std::string& scope, const Token* tail_end, std::size_t available, int limit, int most_match, Token* out);

    // Whatever may follow: at most `most` ways, and each one's text, at most `limit` tokens, at `text + i * limit`.
    int ways(const std::string& scope, const Token* tail_end, std::size_t available, int limit, int most_match, Way* out,
             int most, Token* text, int* lengths);

    SharedCacheStats stats() const;

    std::vector<std::string> names() const;  // most recently used first

    // A scope's text; none for a scope that is not held. See ScopeText::save. (A scope that is dropped meanwhile keeps its
    // memory until it is saved.)
    std::optional<SavedText> save(const std::string& scope) const;

    // Makes a scope of saved text, as the most recently used. `key_length` is that of the cache that saved it: where it
    // is another than this cache's, the stretches are inserted one by one. Throws std::invalid_argument where the scope
    // is held already.
    void restore(const std::string& scope, const std::uint32_t* tokens, std::size_t count, const std::uint16_t* seen,
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

    Keys keys_;
    Share share_;
    std::size_t budget_;
    std::size_t max_scopes_;
    Wait wait_;
    mutable std::mutex mutex_;
    Scopes scopes_;
    std::unordered_map<std::string_view, Scopes::iterator> by_name_;  // keys are the names in scopes_
    std::uint64_t evictions_ = 0;
    std::uint64_t documents_ = 0;
    std::uint64_t tokens_ = 0;
};

}  // namespace trtlookup
