//! Pulls that say nothing for long: which are given up.

use super::*;

/// A pull that says so much of its layers, and nothing for five minutes before it is complete.
fn silent(said: &[(&str, &str)]) -> PullScript {
    let complete = works().messages.pop();
    let said = said
        .iter()
        .map(|(layer, status)| Ok(message(layer, status)));
    PullScript {
        messages: said.chain(complete).collect(),
        silence: Duration::from_mins(5),
        ..works()
    }
}

/// The Engine downloads three layers at a time, of all pulls together, and says once of each other
/// one that it waits.
#[tokio::test(start_paused = true)]
async fn a_pull_whose_layers_wait_within_the_engine_is_not_given_up() {
    for (said, is_awaited) in [
        (vec![("a", "Pulling fs layer"), ("a", "Waiting")], true),
        (vec![("a", "Downloading"), ("a", "Download complete")], true),
        (vec![("a", "Verifying Checksum")], true),
        (
            vec![
                ("a", "Already exists"),
                ("b", "Pulling fs layer"),
                ("c", "Pulling fs layer"),
                ("c", "Waiting"),
                ("b", "Downloading"),
                ("b", "Extracting"),
            ],
            true,
        ),
        (vec![("latest", "Pulling from library/app")], false),
        (vec![("a", "Pulling fs layer")], false),
        (vec![("a", "Waiting"), ("a", "Downloading")], false),
        (
            vec![("a", "Waiting"), ("a", "Retrying in 5 seconds")],
            false,
        ),
        (vec![("a", "Extracting"), ("b", "Downloading")], false),
    ] {
        let engine = Arc::new(FakeEngine::new());
        engine.script_pull("app:latest", silent(&said));
        let failed = puller(&engine).ensure_image_reason(at(0)).await;
        // docker 49
        assert_eq!(failed.is_none(), is_awaited, "{said:?}: {failed:?}");
    }
}
