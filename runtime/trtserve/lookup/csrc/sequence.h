// One sequence's side of drafting: its prediction, prompt and output as one text, its policy, and the copy that waits to be settled.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "policy.h"

namespace trtlookup {

class Sequence {
  public:
    Sequence(const LookupSettings& settings, const std::string& policy, const Priors& priors,
             std::optional<std::string> scope, std::shared_ptr<SharedCache> shared)
        : policy_(make_policy(policy, settings, priors)), text_(settings.ngram), scope_(scope.value_or("")),
          shared_(scope ? std::move(shared) : nullptr) {}

    // Called once, before anything else.
    void begin(const Token* prompt, std::size_t prompt_length, const Token* prediction, std::size_t prediction_length) {
        if (prediction_length > 0) {
            text_.append(prediction, prediction_length);
            text_.separate();
            prompt_ = text_.size();
        }
        text_.append(prompt, prompt_length);
        prompt_length_ = prompt_length;
        policy_->observed(sources(), 0);
    }

    // At most `limit` drafts, at most as many as fit `out` and `saved`. With no copy, nothing waits to be settled.
    Copy propose(int limit, Token* out, double* saved, const Outlook& outlook) {
        waiting_ = policy_->propose(sources(), limit, out, saved, outlook);
        return waiting_;
    }

    // Of a policy that weighs: only the first `count` drafts are put to the verify.
    Copy keep(int count) noexcept {
        policy_->keep(count);
        waiting_.count = count;
        if (count == 0) waiting_ = {};
        return waiting_;
    }

    bool waiting() const noexcept { return waiting_.count > 0; }

    // Throws std::invalid_argument where settle() with these would.
    void check_settle(int accepted, std::optional<int> verified) const {
        if (!waiting()) throw std::invalid_argument("no proposal waits to be settled");
        const int proposed = verified.value_or(waiting_.count);
        if (proposed < 1 || proposed > waiting_.count)
            throw std::invalid_argument("verified is " + std::to_string(proposed) + "; allowed: 1 to " +
                                        std::to_string(waiting_.count) + ", the drafts proposed");
        if (accepted < 0 || accepted > proposed)
            throw std::invalid_argument("accepted is " + std::to_string(accepted) + "; allowed: 0 to " + std::to_string(proposed) +
                                        ", the drafts verified");
    }

    void settle(int accepted, std::optional<int> verified) {
        check_settle(accepted, verified);
        policy_->settle(waiting_.source, verified.value_or(waiting_.count), accepted);
        waiting_ = {};
    }

    void abandon() noexcept { waiting_ = {}; }

    void observe(const Token* tokens, std::size_t count) {
        const std::size_t from = text_.size();
        text_.append(tokens, count);
        agree(from - prompt_ - prompt_length_, count);
        policy_->observed(sources(), from);
    }

    void rewind(std::size_t length) {
        if (length > this->length())
            throw std::invalid_argument("cannot truncate to " + std::to_string(length) + " tokens; the history has " +
                                        std::to_string(this->length()));
        text_.truncate(prompt_ + length);
        prompt_length_ = std::min(prompt_length_, length);
        agreed_ = std::min(agreed_, length - prompt_length_);
        policy_->rewound(text_.size());
    }

    // Ends the sequence: its text goes to the shared cache where `store` and it has a scope, its memory is freed.
    void finish(bool store) {
        if (store && shared_) shared_->insert(scope_, text_.tokens() + prompt_, length());
        finished_ = true;
        waiting_ = {};
        prompt_ = prompt_length_ = agreed_ = 0;
        text_ = NgramIndex(text_.ngram());
        shared_.reset();
    }

    bool finished() const noexcept { return finished_; }
    std::size_t length() const noexcept { return text_.size() - prompt_; }  // of prompt and output
    const NgramIndex& text() const noexcept { return text_; }
    const Policy& policy() const noexcept { return *policy_; }
    std::size_t bytes() const noexcept { return text_.bytes() + policy_->bytes(); }

  private:
    Sources sources() const noexcept {
        return Sources(text_, prompt_, prompt_length_, agreed_, shared_.get(), scope_);
    }

    void agree(std::size_t output, std::size_t count) noexcept {
        if (agreed_ != output) return;
        const Token* const begin = text_.tokens() + prompt_ + prompt_length_;
        const std::size_t most = std::min(output + count, sources().prediction_size());
        while (agreed_ < most && text_.tokens()[agreed_] == begin[agreed_]) ++agreed_;
    }

    std::unique_ptr<Policy> policy_;
    NgramIndex text_;         // the prediction and a border, where there is one, the prompt, the output
    std::size_t prompt_ = 0;  // where the prompt begins in it
    std::size_t prompt_length_ = 0;
    std::size_t agreed_ = 0;  // output tokens that equal the prediction's first ones
    std::string scope_;
    std::shared_ptr<SharedCache> shared_;
    Copy waiting_;
    bool finished_ = false;
};

}  // namespace trtlookup
