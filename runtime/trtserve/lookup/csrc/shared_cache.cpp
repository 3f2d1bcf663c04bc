#include "shared_cache.h"

#include <ctime>
#include <new>
#include <stdexcept>

namespace trtlookup {

SharedCache::SharedCache(std::size_t budget, int scopes, int key_length, std::size_t min_share_tokens, Wait wait)
    : keys_(key_length), share_{0, 0, 0}, budget_(budget), max_scopes_(static_cast<std::size_t>(scopes)), wait_(wait) {
    if (key_length < 1 || key_length > 64)
        throw std::invalid_argument("key_length is " + std::to_string(key_length) + "; allowed: 1 to 64");
    if (scopes < 1 || scopes > 256)
        throw std::invalid_argument("scopes is " + std::to_string(scopes) + "; allowed: 1 to 256");
    share_ = Share::of(budget / max_scopes_);
    if (share_.tokens < min_share_tokens || share_.tokens == 0 || share_.slots < ScopeText::kWays)
        throw std::invalid_argument("shared cache: " + std::to_string(budget) + " bytes over " + std::to_string(scopes) +
                                    " scopes leave " + std::to_string(share_.bytes) + " bytes a scope, " +
                                    std::to_string(share_.tokens) + " tokens beside a table of " +
                                    std::to_string(share_.slots) + " entries; allowed: at least " +
                                    std::to_string(min_share_tokens) + " tokens. Give it more memory or fewer scopes");
}

std::unique_lock<std::mutex> SharedCache::lock() const {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    while (!lock.owns_lock()) {
        wait_(mutex_);
        lock.try_lock();
    }
    return lock;
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
    scopes_.push_front(Scope{name, std::make_shared<ScopeText>(share_, keys_)});
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
    const auto lock = this->lock();
    Scope& stored = open(scope);
    tokens_ += stored.text->insert(tokens, count);
    ++stored.documents;
    stored.stored_at = static_cast<std::int64_t>(std::time(nullptr));
    ++documents_;
}

SharedCache::Found SharedCache::copy(const std::string& scope, const Token* tail_end, std::size_t available, int limit,
                                     int most_match, Token* out) {
    const auto lock = this->lock();
    const Scope* found = touch(scope);
    Way way;
    if (!found || found->text->ways(tail_end, available, most_match, &way, 1) == 0 || way.match < key_length()) return {0, 0};
    return {found->text->read(way.place, limit, out), way.match};
}

int SharedCache::ways(const std::string& scope, const Token* tail_end, std::size_t available, int limit, int most_match,
                      Way* out, int most, Token* text, int* lengths) {
    const auto lock = this->lock();
    const Scope* found = touch(scope);
    if (!found) return 0;
    const int count = found->text->ways(tail_end, available, most_match, out, most);
    for (int i = 0; i < count; ++i) lengths[i] = found->text->read(out[i].place, limit, text + i * limit);
    return count;
}

SharedCacheStats SharedCache::stats() const {
    const auto lock = this->lock();
    std::size_t bytes = 0;
    for (const Scope& scope : scopes_) bytes += scope.text->bytes();
    return {bytes, budget_, scopes_.size(), evictions_, documents_, tokens_};
}

std::vector<std::string> SharedCache::names() const {
    const auto lock = this->lock();
    std::vector<std::string> names;
    for (const Scope& scope : scopes_) names.push_back(scope.name);
    return names;
}

std::optional<SavedText> SharedCache::save(const std::string& name) const {
    std::shared_ptr<const ScopeText> text;
    std::uint64_t documents = 0;
    std::int64_t stored_at = 0;
    {
        const auto lock = this->lock();
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
                          const std::uint16_t* seen, int key_length, std::uint64_t documents, std::int64_t stored_at) {
    const auto lock = this->lock();
    if (by_name_.contains(name)) throw std::invalid_argument("restore: scope " + name + " is held already");
    Scope& scope = open(name);
    scope.documents = documents;
    scope.stored_at = stored_at;
    if (key_length == keys_.key_length()) {
        scope.text->restore(tokens, count, seen);
        return;
    }
    const auto shortest = static_cast<std::size_t>(this->key_length());
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
