//! Errors in one line.

use std::error::Error;

/// An error and its causes, each only once: many errors repeat the text of their cause, and hyper's own
/// text alone rarely suffices.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str, #[source] Option<Box<Said>>);

    #[test]
    fn every_cause_is_said_once() {
        let said = |words, cause| Said(words, Some(Box::new(cause)));
        let refused = || Said("refused", None);
        assert_eq!(with_causes(&refused()), "refused");
        let twice = said("failed to connect: refused", refused());
        assert_eq!(with_causes(&twice), "failed to connect: refused");
        let deep = said("no answer", said("failed to connect", refused()));
        assert_eq!(with_causes(&deep), "no answer: failed to connect: refused");
    }
}
