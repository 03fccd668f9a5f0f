//! Jobs of manifests, under a whole agent.

use mirrorlet_core::api::report::JobReport;

use crate::common::{Bed, IMAGE, TestAgent};

/// A Job of one container; each start of it is a line in `runs` of a directory of the host.
fn job(bed: &Bed, command: &str, more: &str) -> String {
    format!(
        r#"apiVersion: batch/v1
kind: Job
metadata: {{name: work}}
spec:
  {more}
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - name: work
        image: {IMAGE}
        command: ["sh", "-c", "echo $JOB_COMPLETION_INDEX >> /data/runs; {command}"]
        volumeMounts: [{{name: data, mountPath: /data}}]
      volumes:
      - name: data
        hostPath: {{path: {}, type: DirectoryOrCreate}}
"#,
        bed.path().join("data").display()
    )
}

/// The lines that the starts of containers wrote, in order.
fn runs(bed: &Bed) -> Vec<String> {
    let text = std::fs::read_to_string(bed.path().join("data/runs")).unwrap_or_default();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

async fn until_job(
    agent: &TestAgent,
    what: &str,
    wanted: impl Fn(&JobReport) -> bool,
) -> JobReport {
    let report = agent
        .until(&format!("the Job to be {what}"), |report| {
            report.jobs.iter().any(&wanted)
        })
        .await;
    report.jobs[0].clone()
}

async fn until_complete(agent: &TestAgent) -> JobReport {
    until_job(agent, "complete", |job| job.condition == "Complete").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_done_once_over_agents() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("work.yaml", &job(&bed, "exit 0", "backoffLimit: 2"));
    let done = until_complete(&agent).await;
    assert_eq!((done.succeeded, done.failed), (1, 0));
    assert_eq!(done.reason, "CompletionsReached");
    let pod = agent
        .until_pod("work-0", |pod| pod.status == "Completed")
        .await;
    assert_eq!(pod.workload.as_deref(), Some("Job/work"));
    assert_eq!(runs(&bed).len(), 1);
    agent.stop().await;
    // Its containers are gone: what was done is on disk.
    for id in bed.containers().values() {
        bed.docker(&["rm", "-f", id]);
    }
    let agent = bed.agent().await;
    until_complete(&agent).await;
    agent
        .until_pod("work-0", |pod| pod.status == "Completed")
        .await;
    // What isn't its content makes it no other Job.
    bed.write("work.yaml", &job(&bed, "exit 0", "backoffLimit: 3"));
    agent.view().refresh().await;
    // workloads 7
    assert_eq!(runs(&bed).len(), 1);
    // An edit runs it again.
    bed.write("work.yaml", &job(&bed, "true; exit 0", "backoffLimit: 3"));
    agent
        .until("the second run", |_| runs(&bed).len() == 2)
        .await;
    until_complete(&agent).await;
    bed.remove("work.yaml");
    agent.until_gone("work-0").await;
    assert!(bed.containers().is_empty(), "{:?}", bed.containers());
    assert!(agent.status().jobs.is_empty());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_indexed_job_of_five_does_each_index_once() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let more = "completions: 5\n  parallelism: 2\n  completionMode: Indexed";
    bed.write(
        "work.yaml",
        &job(&bed, "test $HOSTNAME = work-$JOB_COMPLETION_INDEX", more),
    );
    let done = until_complete(&agent).await;
    assert_eq!(done.completed_indexes, "0-4");
    // workloads 8
    assert_eq!(runs(&bed), ["0", "1", "2", "3", "4"]);
    let pods = agent.status().pods;
    let names: Vec<&str> = pods.iter().map(|pod| pod.manifest_name.as_str()).collect();
    assert_eq!(names, ["work-0", "work-1", "work-2", "work-3", "work-4"]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_pod_is_tried_again_as_another_one() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // The first attempt fails.
    let command = "test $(wc -l < /data/runs) -gt 1";
    bed.write("work.yaml", &job(&bed, command, "backoffLimit: 1"));
    agent.until_pod("work-0", |pod| pod.status == "Error").await;
    let done = until_complete(&agent).await;
    assert_eq!((done.succeeded, done.failed), (1, 1));
    agent
        .until_pod("work-0-1", |pod| pod.status == "Completed")
        .await;
    // workloads 9
    assert_eq!(runs(&bed).len(), 2);
    // The failed one stays for its log.
    assert_eq!(agent.pod("work-0").unwrap().status, "Error");
    agent.stop().await;
}
