//! Calls that get no answer delay the pods that they are for.

use super::*;

/// How long a pod is waited for that has nothing to wait for itself. The clock is paused.
const PATIENCE: Duration = Duration::from_mins(1);

/// Names the container of a pod whose call hangs.
type Target = fn(&Arc<Pod>) -> String;

/// Makes calls for twice as many pods hang as may begin together.
async fn hung(bed: &Bed, operation: Operation, target: Target) -> Vec<Arc<Pod>> {
    let pods: Vec<_> = (0..8).map(|n| pod(&format!("h{n}"), &json!({}))).collect();
    for pod in &pods {
        if operation == Operation::RemoveContainer {
            bed.up(pod).await;
            bed.kill(pod, None).await;
        }
        bed.engine.hold_of(operation, &target(pod));
    }
    bed.engine.clear_calls();
    pods
}

/// Whether another pod comes up once so many calls were made, some of which hang; and what these come
/// to once they are answered.
async fn other_is_up<T>(
    bed: &Bed,
    operation: Operation,
    made: usize,
    hung: impl Future<Output = Vec<T>>,
) -> (bool, Vec<T>) {
    let mut hung = Box::pin(hung);
    let other = pod("other", &json!({}));
    let up = tokio::time::timeout(PATIENCE, async {
        let other_up = async {
            while bed.engine.count(operation) < made {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            bed.up(&other).await;
        };
        tokio::select! {
            _ = &mut hung => panic!("their calls hang"),
            () = other_up => {}
        }
    });
    let is_up = up.await.is_ok();
    bed.engine.release(operation);
    (is_up, hung.await)
}

#[tokio::test(start_paused = true)]
async fn calls_that_hang_delay_no_other_pod() {
    let cancel = CancellationToken::new();
    let cases: [(Operation, Target, usize); 3] = [
        (Operation::CreateContainer, pause_name, 4),
        (Operation::StartContainer, pause_name, 4),
        // After those of all sandboxes.
        (Operation::StartContainer, app_name, 12),
    ];
    for (operation, target, made) in cases {
        let bed = Bed::warm().await;
        let pods = hung(&bed, operation, target).await;
        let rounds = pods.iter().map(|pod| bed.round_until(pod, &cancel));
        let (is_up, results) = other_is_up(&bed, operation, made, join_all(rounds)).await;
        // docker 60b
        assert!(is_up, "{operation} of {}", target(&pods[0]));
        for result in results {
            assert_eq!(result.error(), None, "{operation}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn removals_that_hang_delay_no_other_pod() {
    let bed = Bed::warm().await;
    let operation = Operation::RemoveContainer;
    let pods = hung(&bed, operation, app_name).await;
    let uids: Vec<_> = pods.iter().map(|pod| PodUid::of(pod)).collect();
    let removals = uids.iter().map(|uid| bed.manager.delete_pod(uid));
    // After those of all sandboxes.
    let (is_up, results) = other_is_up(&bed, operation, 12, join_all(removals)).await;
    // docker 60b
    assert!(is_up);
    assert!(results.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_removed_while_its_sandboxs_image_is_pulled_ends_and_took_no_turn() {
    let mut bed = Bed::warm().await;
    let stalls = PullScript {
        stalls: true,
        ..PullScript::default()
    };
    bed.engine.script_pull("pause:9", stalls);
    let options = DockerManagerOptions {
        pod_infra_image: Some("pause:9".to_owned()),
        ..options(bed.root.path(), HostFacts::default())
    };
    bed.manager = manager_with(&bed.engine, options);
    let (pod, cancel) = (pod("a", &json!({})), CancellationToken::new());
    let round = bed.round_until(&pod, &cancel);
    let removal = async {
        while bed.engine.count(Operation::PullImage) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let turns = bed.manager.starter.newcomers.available();
        cancel.cancel();
        turns
    };
    // A pull without progress is given up only after a minute.
    let both = futures::future::join(round, removal);
    let ended = tokio::time::timeout(Duration::from_secs(5), both).await;
    let (_, turns) = ended.expect("it waits for the pull");
    // docker 60d
    assert_eq!(turns, 4, "others may start meanwhile");
    assert_eq!(bed.containers(), []);
}
