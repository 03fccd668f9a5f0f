//! Retries attempts while they fail because this machine lacks a resource.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use mirrorlet_core::backoff::ExponentialBackoff;

/// Pauses between the attempts: resources are released within moments, or not for long.
const PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// The pauses between attempts, as long as there is time for another one before `until`.
pub(super) struct Pauses {
    backoff: ExponentialBackoff,
    until: Instant,
}

impl Pauses {
    pub(super) fn until(until: Instant) -> Self {
        let backoff = PAUSES;
        Self { backoff, until }
    }

    /// Returns the next one.
    pub(super) fn pause(&mut self) -> Option<Duration> {
        let pause = self.backoff.pause();
        (Instant::now() + pause < self.until).then_some(pause)
    }
}

/// Makes at least one attempt, and retries while its error is a shortage and there is time for another
/// attempt before `until`.
pub(super) async fn persist<T, E, A>(
    until: Instant,
    is_shortage: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> A,
) -> Result<T, E>
where
    A: Future<Output = Result<T, E>>,
{
    let mut pauses = Pauses::until(until);
    loop {
        match attempt().await {
            Err(error) if is_shortage(&error) => match pauses.pause() {
                Some(pause) => sleep(pause).await,
                None => return Err(error),
            },
            made => return made,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_attempt_is_made_again_for_a_shortage_alone_and_within_its_time() {
        let (short, other) = ("short", "other");
        // How long it may take, its results in order, and the result and the number of attempts. The
        // last result is that of all later attempts.
        for (seconds, results, expected, attempts) in [
            (60, &[Ok(1)][..], Ok(1), 1),
            (60, &[Err(other), Ok(1)], Err(other), 1),
            (60, &[Err(short), Err(short), Ok(1)], Ok(1), 3),
            (60, &[Err(short), Err(other), Ok(1)], Err(other), 2),
            (0, &[Err(short), Ok(1)], Err(short), 1),
            // After 0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3 and 11.3 s.
            (12, &[Err(short)], Err(short), 8),
        ] {
            let mut made = 0;
            let attempt = || {
                let result = results[made.min(results.len() - 1)];
                made += 1;
                std::future::ready(result)
            };
            let until = Instant::now() + Duration::from_secs(seconds);
            let result = persist(until, |error| *error == short, attempt).await;
            assert!(seconds == 0 || Instant::now() < until);
            // pods 60
            assert_eq!((result, made), (expected, attempts), "{results:?}");
        }
    }
}
