//! Holds `docs/seeds.md` to the tree: every path, item and test it names exists, the product uses
//! what stands for a seed, every row says what that is or why there is none, and no seed is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::layering;

/// What the seeds exported: the `container` package, `DockerManager`, the pod manager, the mirror
/// client.
const SEEDS: &str = "
    Type Version APIVersion Status GetPods GarbageCollect SyncPod KillPod GetPodStatus PullImage
    IsImagePresent GetImageRef ListImages RemoveImage ImageStats GetContainerLogs RunInContainer
    ExecInContainer AttachContainer PortForward DeleteContainer GetNetNS GetPodContainerID
    UpdatePodCIDR GetContainerStatus ImageFsInfo CheckpointContainer GeneratePodStatus
    ContainerID BuildContainerID ParseContainerID DockerID ContainerState Container
    ContainerStatus Pod Pods FindPodByID FindPodByFullName FindPod BuildPodFullName
    GetPodFullName ParsePodFullName PodPair PodStatus FindContainerStatusByName
    GetRunningContainerStatuses ConvertPodStatusToRunningPod SyncAction SyncResult PodSyncResult
    AddSyncResult AddPodSyncResult Error RunContainerOptions EnvVar EnvVarsToMap Mount
    PortMapping VolumeInfo VolumeMap ContainerGCPolicy ContainerGC NewContainerGC
    DeleteAllUnusedContainers SourcesReadyProvider RefManager SetRef ClearRef GetRef
    GenerateContainerRef FilterEventRecorder Cache Get Set GetNewerThan UpdateTime Delete
    RuntimeCache ForceUpdateIfOlder ImageSpec Image ImagePuller RuntimeHelper HandlerRunner
    OSInterface RealOS FakeOS Option StartPty ShouldContainerBeRestarted HashContainer
    ExpandContainerCommandAndArgs FakeRuntime FakeVersion FakeRuntimeCache NewFakeCache Mock
    FakeDockerClient NewDockerManager GetKubeletDockerContainers KillContainerInPod
    killPodWithSyncResult createPodInfraContainer podInfraContainerChanged
    computePodContainerChanges tryContainerStart runContainerInPod
    pruneInitContainersBeforeStart findActiveInitContainer doBackOff determineContainerIP
    getPidMode getIPCMode IsHostNetworkPod calculateOomScoreAdj containerAndPodFromLabels
    verifyNonRoot isImageRoot containerGC
    GetPodByFullName GetPodByName GetPodByUID GetPodByMirrorPod GetMirrorPodByPod
    GetPodsAndMirrorPods GetOrphanedMirrorPodNames GetPodAndMirrorPod
    GetStaticPodToMirrorPodMap SetPods AddPod UpdatePod DeletePod RemovePod TranslatePodUID
    GetUIDTranslations IsMirrorPodOf IsStaticPod IsMirrorPod CreateMirrorPod DeleteMirrorPod
";

/// Shortest text that is a reason.
const REASON_MIN: usize = 12;

struct Row {
    seed: String,
    here: String,
    test: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page() -> String {
    fs::read_to_string(root().join("docs/seeds.md")).unwrap()
}

/// The rows of all tables.
fn rows(page: &str) -> Vec<Row> {
    let lines = page.lines().filter(|line| line.starts_with("| "));
    let cells = lines.map(|line| line.trim_matches('|').split('|').map(str::trim));
    let rows = cells.filter_map(|mut cells| {
        let (seed, here, test) = (cells.next()?, cells.next()?, cells.next()?);
        assert_eq!(cells.next(), None, "a row of more than three cells: {seed}");
        Some(Row {
            seed: seed.to_owned(),
            here: here.to_owned(),
            test: test.to_owned(),
        })
    });
    rows.filter(|row| row.seed != "Seed").collect()
}

/// What a text names as `path::item`.
fn named(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter_map(|word| word.split_once("::")).collect()
}

/// Whether a file defines something of that name.
fn defines(code: &str, item: &str) -> bool {
    let kinds = [
        "fn", "struct", "enum", "trait", "type", "const", "static", "mod",
    ];
    kinds.iter().any(|kind| {
        let start = format!("{kind} {item}");
        code.match_indices(&start).any(|(at, found)| {
            let next = code[at + found.len()..].chars().next();
            next.is_none_or(|c| !c.is_alphanumeric() && c != '_')
        })
    })
}

/// What of `path::item` does not exist.
fn missing(text: &str, must_be_test: bool) -> Vec<String> {
    let is_missing = |(path, item): &(&str, &str)| {
        let Ok(code) = fs::read_to_string(root().join(path)) else {
            return true;
        };
        if must_be_test {
            // A test takes no argument; one of proptest does.
            let is_tested = code.contains("#[test]") || code.contains("#[tokio::test");
            !is_tested || !code.contains(&format!("fn {item}("))
        } else {
            !defines(&code, item)
        }
    };
    let named = named(text).into_iter().filter(is_missing);
    named
        .map(|(path, item)| format!("{path}::{item}"))
        .collect()
}

#[test]
fn every_path_item_and_test_exists() {
    let rows = rows(&page());
    assert!(
        rows.len() > 100,
        "the page was not read: {} rows",
        rows.len()
    );
    let mut wrong = Vec::new();
    for row in &rows {
        for (text, must_be_test) in [(&row.here, false), (&row.test, true)] {
            let missing = missing(text, must_be_test);
            wrong.extend(missing.iter().map(|name| format!("{}: {name}", row.seed)));
        }
    }
    assert!(
        wrong.is_empty(),
        "docs/seeds.md names what isn't there: {wrong:#?}"
    );
}

/// How often each name stands in the code of the product: definitions and uses, no imports, no
/// tests and no doubles.
fn uses() -> BTreeMap<String, usize> {
    let mut uses = BTreeMap::new();
    for (file, text) in layering::sources() {
        if layering::is_test_file(&file) || file.contains("/fake_engine/") {
            continue;
        }
        for (_, code) in layering::statements(&text) {
            if code
                .trim_start()
                .trim_start_matches("pub ")
                .starts_with("use ")
            {
                continue;
            }
            for word in code.split(|c: char| !c.is_alphanumeric() && c != '_') {
                *uses.entry(word.to_owned()).or_default() += 1;
            }
        }
    }
    uses
}

#[test]
fn every_counterpart_is_used_by_the_product() {
    let uses = uses();
    let page = page();
    let mut unused = Vec::new();
    for row in rows(&page) {
        for (path, item) in named(&row.here) {
            let is_double = path.contains("crates/testing/") || path.contains("/fake_engine/");
            if !is_double && uses.get(item).copied().unwrap_or(0) < 2 {
                unused.push(format!("{}: {path}::{item}", row.seed));
            }
        }
    }
    assert!(
        unused.is_empty(),
        "the product never uses these of docs/seeds.md: {unused:#?}"
    );
}

#[test]
fn every_method_of_runtime_is_called_by_the_product() {
    let text = fs::read_to_string(root().join("crates/runtime/src/lib.rs")).unwrap();
    let (_, body) = text.split_once("pub trait Runtime").unwrap();
    let methods: Vec<&str> = body
        .lines()
        .filter_map(|line| {
            line.trim_start()
                .trim_start_matches("async ")
                .strip_prefix("fn ")
        })
        .filter_map(|line| line.split(['(', '<']).next())
        .collect();
    assert!(methods.len() > 15, "the trait was not read: {methods:?}");
    let sources = layering::sources();
    let callers = sources
        .iter()
        .filter(|(file, _)| !file.starts_with("crates/docker/") && !layering::is_test_file(file));
    let code: String = callers
        .flat_map(|(_, text)| layering::statements(text))
        .map(|(_, code)| code)
        .collect();
    let uncalled: Vec<&&str> = methods
        .iter()
        .filter(|method| !code.contains(&format!(".{method}(")))
        .collect();
    assert!(
        uncalled.is_empty(),
        "nobody calls these of Runtime: {uncalled:?}"
    );
}

#[test]
fn every_row_has_a_counterpart_with_a_test_or_a_reason() {
    for row in rows(&page()) {
        let prose: String = row.here.split('`').step_by(2).collect();
        let has_reason = prose.trim().len() >= REASON_MIN;
        let has_counterpart = !named(&row.here).is_empty();
        let has_test = !named(&row.test).is_empty();
        assert!(
            has_counterpart || has_reason,
            "{}: neither counterpart nor reason",
            row.seed
        );
        assert!(
            has_test || has_reason,
            "{}: neither test nor reason",
            row.seed
        );
        assert!(
            has_test || row.test == "—",
            "{}: {:?} is no test",
            row.seed,
            row.test
        );
    }
}

#[test]
fn no_seed_is_missing() {
    let page = page();
    let words: BTreeSet<String> = rows(&page)
        .iter()
        .flat_map(|row| {
            let words = row.seed.split(|c: char| !c.is_alphanumeric());
            words.map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let missing: Vec<&str> = SEEDS
        .split_whitespace()
        .filter(|seed| !words.contains(*seed))
        .collect();
    assert!(missing.is_empty(), "docs/seeds.md lacks: {missing:#?}");
}

#[test]
fn what_is_not_there_is_noticed() {
    let here = "`src/lib.rs::nowhere`, `src/nowhere.rs::x`, `tests/house/seeds.rs::defines`";
    assert_eq!(
        missing(here, false),
        ["src/lib.rs::nowhere", "src/nowhere.rs::x"]
    );
    assert_eq!(missing("`src/lib.rs::run`", true), ["src/lib.rs::run"]);
    assert!(defines("pub async fn a(", "a") && !defines("fn ab(", "a"));
}
