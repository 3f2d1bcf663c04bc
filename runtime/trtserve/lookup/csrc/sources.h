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

    // `prompt` is where the prompt begins in the text, `prompt_length` its tokens.
    Sources(const NgramIndex& text, std::size_t prompt, std::size_t prompt_length, std::size_t agreed, SharedCache* shared,
            const std::string& scope) noexcept
        : text_(text), prompt_(prompt), prompt_length_(prompt_length), agreed_(agreed), shared_(shared), scope_(scope) {}

    // All of the sequence's own: the prediction and a border, where it has one, then the prompt and the output.
    const NgramIndex& text() const noexcept { return text_; }
    std::size_t history_size() const noexcept { return text_.size() - prompt_; }             // of prompt and output
    std::size_t prediction_size() const noexcept { return prompt_ == 0 ? 0 : prompt_ - 1; }  // without the border
    Source source_of(std::size_t position) const noexcept { return position < prompt_ ? Source::prediction : Source::history; }
    bool has_shared() const noexcept { return shared_ != nullptr; }

    // After the latest earlier occurrence of the last n-gram in the history.
    Place history() const noexcept {
        const std::size_t position = latest();
        return position < prompt_ ? Place{} : place(position, text_.size());
    }

    // The same in the prediction. What occurs in the history too, later than there, is passed over one by one.
    Place prediction() const noexcept {
        std::size_t position = prompt_ == 0 ? 0 : latest();
        while (position != 0 && position >= prediction_size()) position = text_.older(position);
        return place(position, prediction_size());
    }

    // Where the output stands in the prediction, while all output so far is the prediction's beginning. With no output
    // yet that is the prediction's start, and nothing has matched.
    Place anchor() const noexcept {
        if (agreed_ != history_size() - prompt_length_ || agreed_ >= prediction_size()) return {};
        const auto most = static_cast<std::size_t>(kMostMatch);
        return {text_.tokens() + agreed_, prediction_size() - agreed_, static_cast<int>(agreed_ < most ? agreed_ : most)};
    }

    // The longest match in the shared cache, if it spans the cache's key length: at most `limit` tokens to `out`.
    Copy shared(int limit, Token* out) const {
        if (!shared_) return {};
        const auto found = shared_->copy(scope_, text_.end(), history_size(), limit, kMostMatch, out);
        return {found.count, Source::shared, found.match};
    }

    // Whatever the shared cache knows to follow, the longest match first: at most `most` ways, and of each at most `limit`
    // tokens at `text + i * limit`, `lengths[i]` of them.
    int shared_ways(int limit, Way* out, int most, Token* text, int* lengths) const {
        if (!shared_) return 0;
        return shared_->ways(scope_, text_.end(), history_size(), limit, kMostMatch, out, most, text, lengths);
    }

  private:
    std::size_t latest() const noexcept { return history_size() < static_cast<std::size_t>(text_.ngram()) ? 0 : text_.latest(); }

    Place place(std::size_t position, std::size_t end) const noexcept {
        if (position == 0) return {};
        return {text_.tokens() + position, end - position, text_.match(position, text_.end(), history_size(), kMostMatch)};
    }

    const NgramIndex& text_;
    std::size_t prompt_;
    std::size_t prompt_length_;
    std::size_t agreed_;  // output tokens that equal the prediction's first ones
    SharedCache* shared_;
    const std::string& scope_;
};

}  // namespace trtlookup
