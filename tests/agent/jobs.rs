//! Jobs of manifests, under a whole agent.

use mirrorlet::server::view::{Order, Verb};
use mirrorlet_core::api::report::{JobReport, StatusReport};

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
    // A change outside its content makes it no other Job.
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

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_job_begins_once_no_pod_of_its_old_run_runs() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let lines = || {
        let text = std::fs::read_to_string(bed.path().join("data/runs")).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<String>>()
    };
    let document = |command: &str| {
        let more = "completions: 2\n  completionMode: Indexed";
        // Long enough to be seen to run on.
        job(&bed, command, more).replace("PeriodSeconds: 1", "PeriodSeconds: 3")
    };
    // Its second pod runs on when it is asked to stop. The name of no pod keeps the next run waiting: that
    // begins with the first index.
    let old = "test $JOB_COMPLETION_INDEX = 0 && exit 0; trap '' TERM; while true; do echo old >> /data/runs; sleep 0.1; done";
    bed.write("work.yaml", &document(old));
    let is_old = |line: &String| line == "old";
    agent
        .until("the second pod", |_| lines().iter().any(is_old))
        .await;
    bed.write("work.yaml", &document("echo new >> /data/runs; exit 0"));
    until_complete(&agent).await;
    let lines = lines();
    let new = lines.iter().position(|line| line == "new").unwrap();
    // workloads 7
    assert!(!lines[new..].iter().any(is_old), "{lines:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_asks_to_be_restarted_on_edits_is_done_once() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let words = |word: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: words}}\ndata: {{WORD: {word}}}\n"
        )
    };
    bed.write("words.yaml", &words("one"));
    let command = "until test -e /data/go; do sleep 0.1; done";
    let document = job(&bed, command, "backoffLimit: 0")
        .replace(
            "template:\n    spec:",
            "template:\n    metadata:\n      annotations: {mirrorlet.dev/restart-on: config}\n    spec:",
        )
        .replace(
            "        command:",
            "        envFrom: [{configMapRef: {name: words}}]\n        command:",
        );
    assert!(document.contains("restart-on") && document.contains("envFrom"));
    bed.write("work.yaml", &document);
    agent
        .until("the first run", |_| runs(&bed).len() == 1)
        .await;
    bed.write("words.yaml", &words("two"));
    agent.view().refresh().await;
    std::fs::write(bed.path().join("data/go"), "").unwrap();
    let done = until_complete(&agent).await;
    assert_eq!((done.succeeded, done.failed), (1, 0));
    bed.write("words.yaml", &words("three"));
    agent.view().refresh().await;
    // workloads 7
    assert_eq!(runs(&bed).len(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_document_of_a_job_does_not_do_its_work_again() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let document = |command: &str| job(&bed, command, "backoffLimit: 0");
    bed.write("work.yaml", &document("exit 0"));
    until_complete(&agent).await;
    // A file that sorts first, and has another command.
    bed.write("again.yaml", &document("true; exit 0"));
    let is_told = |report: &StatusReport| {
        let mut problems = report.problems.iter().map(ToString::to_string);
        problems.any(|problem| problem.contains("again.yaml"))
    };
    agent
        .until("the second document to be reported", is_told)
        .await;
    // workloads 7
    assert_eq!(runs(&bed).len(), 1);
    agent.stop().await;
    let agent = bed.agent().await;
    agent
        .until("the second document to be known", is_told)
        .await;
    let done = until_complete(&agent).await;
    assert!(done.source.ends_with("work.yaml"), "{done:?}");
    // workloads 7
    assert_eq!(runs(&bed).len(), 1);
    // An edit of the first one runs it again.
    bed.write("work.yaml", &document("true; true; exit 0"));
    agent
        .until("the second run", |_| runs(&bed).len() == 2)
        .await;
    let done = until_complete(&agent).await;
    assert!(done.source.ends_with("work.yaml"), "{done:?}");
    agent.stop().await;
}

/// A CronJob that is due once a year, with the Job of [`job`].
fn cron_job(bed: &Bed, more: &str) -> String {
    let job = job(bed, "exit 0", "backoffLimit: 0");
    let spec = job
        .split_once("spec:\n")
        .unwrap()
        .1
        .replace("\n  ", "\n      ");
    format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: yearly}}\nspec:\n  schedule: \"0 0 1 1 *\"\n  timeZone: Asia/Tokyo\n  {more}\n  jobTemplate:\n    spec:\n    {spec}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cron_job_runs_when_a_person_says_so_and_keeps_its_history() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write(
        "yearly.yaml",
        &cron_job(&bed, "successfulJobsHistoryLimit: 1"),
    );
    let report = agent
        .until("the CronJob", |report| !report.cron_jobs.is_empty())
        .await;
    let cron = &report.cron_jobs[0];
    assert_eq!(
        (cron.time_zone.as_str(), cron.last_schedule),
        ("Asia/Tokyo", None)
    );
    assert!(
        report.jobs.is_empty() && report.pods.is_empty(),
        "{report:?}"
    );
    let run = Order {
        pod: "yearly".to_owned(),
        verb: Verb::Run,
        container: None,
        pull: false,
    };
    let is_done =
        |name: &'static str| move |job: &JobReport| job.name == name && job.condition == "Complete";
    let answer = agent.view().order(&run).await.unwrap();
    assert_eq!(answer.name, "yearly-run-0");
    let done = until_job(&agent, "run", is_done("yearly-run-0")).await;
    assert_eq!(done.cron_job.as_deref(), Some("yearly"));
    agent.stop().await;
    // The next agent knows what was done, and goes on from there.
    let agent = bed.agent().await;
    until_job(&agent, "known", is_done("yearly-run-0")).await;
    let answer = agent.view().order(&run).await.unwrap();
    assert_eq!(answer.name, "yearly-run-1");
    // One that succeeded stays.
    let report = agent
        .until("the second run alone", |report| {
            report.jobs.iter().any(is_done("yearly-run-1")) && report.jobs.len() == 1
        })
        .await;
    assert_eq!(report.jobs[0].name, "yearly-run-1");
    agent.until_gone("yearly-run-0-0").await;
    // workloads 10
    assert_eq!(runs(&bed).len(), 2);
    let unknown = Order {
        pod: "monthly".to_owned(),
        ..run
    };
    assert!(agent.view().order(&unknown).await.is_err());
    bed.remove("yearly.yaml");
    agent.until_gone("yearly-run-1-0").await;
    assert!(bed.containers().is_empty(), "{:?}", bed.containers());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_record_cannot_be_read_waits_for_a_person() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("work.yaml", &job(&bed, "exit 0", "backoffLimit: 2"));
    until_complete(&agent).await;
    agent.stop().await;
    let records = std::fs::read_dir(bed.path().join("jobs")).unwrap();
    for record in records {
        std::fs::write(record.unwrap().path(), "{").unwrap();
    }
    let agent = bed.agent().await;
    // Before all pods are known, it is not run again, either.
    let report = agent
        .until("the problem", |report| {
            !report.problems.is_empty() && !report.engine.unlisted
        })
        .await;
    assert!(
        report.problems[0].message.contains("can't be read"),
        "{report:?}"
    );
    assert!(report.jobs.is_empty());
    // workloads 7
    assert_eq!(runs(&bed).len(), 1);
    let again = Order {
        pod: "job/work".to_owned(),
        verb: Verb::Restart,
        container: None,
        pull: false,
    };
    agent.view().order(&again).await.unwrap();
    until_complete(&agent).await;
    assert_eq!(runs(&bed).len(), 2);
    agent.stop().await;
}
