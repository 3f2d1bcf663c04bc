// The latest occurrence of the last n-gram, if the match spans min_match; length by a window that doubles and halves.
// Sources in order: history, prediction, shared cache.

#include <algorithm>
#include <cstddef>

#include "policy.h"
#include "window.h"

namespace trtlookup {

namespace {

class WindowPolicy final : public Policy {
  public:
    explicit WindowPolicy(const LookupSettings& settings)
        : min_match_(settings.min_match), window_(settings.max_drafts, settings.miss_backoff) {}

    Copy propose(const Sources& sources, int limit, Token* out, double*, const Outlook&) override {
        if (window_.skip_round()) return {};
        limit = std::min(limit, window_.size());
        if (limit == 0) return {};
        if (const Place place = sources.history(); spans(place)) return copy(place, Source::history, limit, out);
        if (const Place place = sources.anchor(); place.count) return copy(place, Source::prediction, limit, out);
        if (const Place place = sources.prediction(); spans(place)) return copy(place, Source::prediction, limit, out);
        return sources.shared(limit, out);
    }

    void settle(Source, int proposed, int accepted) override { window_.settle(proposed, accepted); }

    int window() const noexcept override { return window_.size(); }
    bool backing_off() const noexcept override { return window_.backing_off(); }
    std::int64_t rounds_skipped() const noexcept override { return window_.rounds_skipped(); }

  private:
    bool spans(const Place& place) const noexcept { return place.count > 0 && place.match >= min_match_; }

    static Copy copy(const Place& place, Source source, int limit, Token* out) noexcept {
        const std::size_t count = std::min(place.count, static_cast<std::size_t>(limit));
        std::copy_n(place.tokens, count, out);
        return {static_cast<int>(count), source, place.match};
    }

    int min_match_;
    Window window_;
};

}  // namespace

std::unique_ptr<Policy> make_window_policy(const LookupSettings& settings, const Priors&) {
    return std::make_unique<WindowPolicy>(settings);
}

}  // namespace trtlookup
