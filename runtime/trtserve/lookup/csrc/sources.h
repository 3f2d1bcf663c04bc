// What one sequence may copy from, as candidates. Choosing among them is a policy's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "index.h"
#include "shared_cache.h"

namespace trtlookup {

enum class Source : std::uint8_t { none, history, prediction, shared };

// A copy, its tokens written elsewhere. No copy has count 0.
struct Copy {
    int count = 0;
    Source source = Source::none;
    int match = 0;  // tokens before the copy's start that equal the sequence's last tokens, counted to kMostMatch
};

// Where a copy could start.
struct Place {
    const Token* tokens = nullptr;  // what followed
    std::size_t count = 0;          // how much of it there is; 0 when there is no such place
    int match = 0;
};

// The sources of one sequence. Nothing here changes the sequence.
class Sources {
  public:
    static constexpr int kMostMatch = 64;

    Sources(const NgramIndex& history, std::size_t prompt_length, const NgramIndex* prediction, std::size_t agreed,
            SharedCache* shared, const std::string& scope) noexcept
        : history_(history), prompt_length_(prompt_length), prediction_(prediction), agreed_(agreed), shared_(shared),
          scope_(scope) {}

    const NgramIndex& text() const noexcept { return history_; }                  // prompt and output
    const NgramIndex* prediction_text() const noexcept { return prediction_; }  // null without one
    bool has_shared() const noexcept { return shared_ != nullptr; }

    // After the latest earlier occurrence of the last n-gram.
    Place history() const noexcept { return place(history_, history_.latest()); }

    // The same in the prediction.
    Place prediction() const noexcept {
        if (!prediction_ || history_.size() < static_cast<std::size_t>(prediction_->ngram())) return {};
        return place(*prediction_, prediction_->find(history_.end(), history_.tail_hash()));
    }

    // Where the output stands in the prediction, while all output so far is the prediction's beginning. With no output
    // yet that is the prediction's start, and nothing has matched.
    Place anchor() const noexcept {
        if (!prediction_ || agreed_ != history_.size() - prompt_length_ || agreed_ >= prediction_->size()) return {};
        const auto most = static_cast<std::size_t>(kMostMatch);
        return {prediction_->tokens() + agreed_, prediction_->size() - agreed_, static_cast<int>(agreed_ < most ? agreed_ : most)};
    }

    // The longest match in the shared cache, if it spans the cache's key length: at most `limit` tokens to `out`.
    Copy shared(int limit, Token* out) const {
        if (!shared_) return {};
        const auto found = shared_->copy(scope_, history_.end(), history_.size(), limit, kMostMatch, out);
        return {found.count, Source::shared, found.match};
    }

    // Whatever the shared cache knows to follow, the longest match first: at most `most` ways, and of each at most `limit`
    // tokens at `text + i * limit`, `lengths[i]` of them.
    int shared_ways(int limit, Way* out, int most, Token* text, int* lengths) const {
        if (!shared_) return 0;
        return shared_->ways(scope_, history_.end(), history_.size(), limit, kMostMatch, out, most, text, lengths);
    }

  private:
    Place place(const NgramIndex& text, std::size_t position) const noexcept {
        if (position == 0) return {};
        return {text.tokens() + position, text.size() - position,
                text.match(position, history_.end(), history_.size(), kMostMatch)};
    }

    const NgramIndex& history_;
    std::size_t prompt_length_;
    const NgramIndex* prediction_;
    std::size_t agreed_;  // output tokens that equal the prediction's first ones
    SharedCache* shared_;
    const std::string& scope_;
};

}  // namespace trtlookup
