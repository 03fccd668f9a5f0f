//! Pulls that say nothing for long: which are given up.

use super::*;

/// A pull that says so much of its layers, and nothing for so many minutes before it is complete.
fn silent(said: &[(&str, &str)], minutes: u64) -> PullScript {
    let complete = works().messages.pop();
    let said = said
        .iter()
        .map(|(layer, status)| Ok(message(layer, status)));
    PullScript {
        messages: said.chain(complete).collect(),
        silence: Duration::from_mins(minutes),
        ..works()
    }
}

/// The Engine downloads three layers at a time, of all pulls together, and says once of each other
/// one that it waits.
#[tokio::test(start_paused = true)]
async fn a_pull_whose_layers_wait_within_the_engine_is_not_given_up() {
    for (said, minutes, is_awaited) in [
        (vec![("a", "Pulling fs layer"), ("a", "Waiting")], 5, true),
        (
            vec![("a", "Downloading"), ("a", "Download complete")],
            5,
            true,
        ),
        (vec![("a", "Verifying Checksum")], 5, true),
        (
            vec![
                ("a", "Already exists"),
                ("b", "Pulling fs layer"),
                ("c", "Pulling fs layer"),
                ("c", "Waiting"),
                ("b", "Downloading"),
                ("b", "Extracting"),
            ],
            5,
            true,
        ),
        // The turn of a layer may have come, unheard.
        (vec![("a", "Waiting")], 31, false),
        (vec![("a", "Waiting"), ("b", "Extracting")], 31, true),
        // The configuration is missing.
        (vec![("a", "Already exists")], 5, false),
        (vec![("a", "Downloading"), ("a", "Pull complete")], 5, false),
        (vec![("latest", "Pulling from library/app")], 5, false),
        (vec![("a", "Pulling fs layer")], 5, false),
        (vec![("a", "Waiting"), ("a", "Downloading")], 5, false),
        (
            vec![("a", "Waiting"), ("a", "Retrying in 5 seconds")],
            5,
            false,
        ),
        (vec![("a", "Extracting"), ("b", "Downloading")], 5, false),
    ] {
        let engine = Arc::new(FakeEngine::new());
        engine.script_pull("app:latest", silent(&said, minutes));
        let failed = puller(&engine).ensure_image_reason(at(0)).await;
        // docker 49
        assert_eq!(failed.is_none(), is_awaited, "{said:?}: {failed:?}");
    }
}

/// containerd's downloads queue within the Engine, too, since 29.9: nothing is said of a layer that waits,
/// nor of one that was downloaded before and is unpacked.
#[tokio::test(start_paused = true)]
async fn containerd_may_be_silent_for_long_before_it_downloads() {
    for (said, minutes, is_awaited) in [
        (vec![("latest", "Pulling from library/app")], 5, true),
        (vec![("a", "Pulling fs layer")], 5, true),
        (vec![("a", "Already exists")], 5, true),
        (vec![("a", "Pulling fs layer"), ("b", "Waiting")], 5, true),
        (vec![("a", "Pulling fs layer")], 32, false),
        // Its turn has come.
        (
            vec![("a", "Pulling fs layer"), ("a", "Downloading")],
            5,
            false,
        ),
        (
            vec![("a", "Downloading"), ("b", "Pulling fs layer")],
            5,
            false,
        ),
    ] {
        let engine = Arc::new(FakeEngine::new());
        engine.leave_images_to_containerd("/run/containerd/containerd.sock");
        engine.script_pull("app:latest", silent(&said, minutes));
        let failed = puller(&engine).ensure_image_reason(at(0)).await;
        // docker 49a
        assert_eq!(failed.is_none(), is_awaited, "{said:?}: {failed:?}");
    }
}
