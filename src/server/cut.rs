//! Bodies of answers that are aborted when the agent stops, so that none looks complete.

use std::io;

use futures::{Stream, StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

/// Returns the pieces of a body up to their end. If `cancel` comes first, the last item is an error,
/// which aborts the body and its connection.
pub(super) fn cut_off<T>(
    pieces: impl Stream<Item = io::Result<T>>,
    cancel: CancellationToken,
) -> impl Stream<Item = io::Result<T>> {
    let open = Some((Box::pin(pieces), cancel));
    stream::unfold(open, |open| async move {
        let (mut pieces, cancel) = open?;
        let next = cancel.run_until_cancelled(pieces.next()).await;
        match next {
            Some(piece) => Some((piece?, Some((pieces, cancel)))),
            None => Some((Err(io::Error::other("the agent stops")), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(texts: &[&'static str]) -> impl Stream<Item = io::Result<&'static str>> + use<> {
        stream::iter(texts.to_vec()).map(Ok)
    }

    #[tokio::test]
    async fn a_body_that_the_stop_cuts_off_does_not_end() {
        let cancel = CancellationToken::new();
        let whole: Vec<_> = cut_off(pieces(&["a", "b"]), cancel.clone()).collect().await;
        // node-api 16
        assert!(whole.iter().all(Result::is_ok) && whole.len() == 2);
        let endless = pieces(&["a"]).chain(stream::pending());
        let mut cut = Box::pin(cut_off(endless, cancel.clone()));
        assert_eq!(cut.next().await.unwrap().unwrap(), "a");
        cancel.cancel();
        // node-api 16
        assert!(cut.next().await.unwrap().is_err());
        assert!(cut.next().await.is_none());
        // More could come at once.
        let mut cut = Box::pin(cut_off(pieces(&["a"]), cancel));
        assert!(cut.next().await.unwrap().is_err());
    }
}
