//! Holds `docs/seeds.md` to the tree: every path, item and test it names exists, the product uses
//! what stands for a seed, every row says what that is or why there is none, and no seed is missing.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::Path;

use crate::layering;

/// Exports of the seeds: the `container` package with its events and errors, `DockerManager`, the
/// pod manager, the mirror client.
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
    NewSyncResult NewCache NewRefManager NewRuntimeCache NewFakeRuntimeCache NewImagePuller
    NewSerializedImagePuller NewBasicPodManager NewBasicMirrorClient PodInfraContainerEnv
    ContainerAttacher ContainerCommandRunner SortContainerStatusesByCreationTime ToAPIPod
    FindContainerByName FindContainerByID IsEmpty Compare ExpandContainerVolumeMounts
    StartContainer KillContainer SetupNetwork TeardownNetwork
    ContainerStateRunning ContainerStateExited ContainerStateUnknown
    CreatedContainer StartedContainer FailedToCreateContainer FailedToStartContainer
    KillingContainer BackOffStartContainer PullingImage PulledImage FailedToPullImage
    FailedToInspectImage ErrImageNeverPullPolicy BackOffPullImage NodeReady NodeNotReady
    NodeSchedulable NodeNotSchedulable StartingKubelet KubeletSetupFailed FailedMountVolume
    HostPortConflict NodeSelectorMismatching InsufficientFreeCPU InsufficientFreeMemory OutOfDisk
    HostNetworkNotSupported UndefinedShaper NodeRebooted InvalidDiskCapacity FreeDiskSpaceFailed
    ContainerUnhealthy FailedSync FailedValidation InfraChanged
    ErrCrashLoopBackOff ErrImagePullBackOff ErrImageInspect ErrImagePull ErrImageNeverPull
    ErrContainerNotFound RegistryUnavailable ErrRunContainer ErrKillContainer ErrVerifyNonRoot
    ErrSetupNetwork ErrTeardownNetwork ErrRunInitContainer InitContainer ImplicitContainerPrefix
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

/// Returns the words of a text of the form `path::item`.
fn named(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter_map(|word| word.split_once("::")).collect()
}

/// Whether a file defines something of that name; a variant stands alone on its line, or with its word.
fn defines(code: &str, item: &str) -> bool {
    let (alone, with_word) = (format!("{item},"), format!("{item} = \""));
    let is_variant = |line: &str| line == alone || line.starts_with(&with_word);
    if code.lines().map(str::trim).any(is_variant) {
        return true;
    }
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

/// Returns those of `path::item` that do not exist.
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

/// A source of the product: no test and no double.
struct Source {
    file: String,
    /// Its code, each chain of calls on one line.
    code: Vec<String>,
    imports: Vec<String>,
    /// Those of both: most sources have none of what is looked for.
    words: HashSet<String>,
}

fn product() -> Vec<Source> {
    let sources = layering::sources().into_iter();
    let product = |file: &str| !layering::is_test_file(file) && !file.contains("/fake_engine/");
    let product = sources.filter(|(file, _)| product(file));
    product.map(|(file, text)| parsed(file, &text)).collect()
}

fn parsed(file: String, text: &str) -> Source {
    let (mut code, mut imports) = (Vec::<String>::new(), Vec::new());
    for (_, statement) in layering::statements(text) {
        let trimmed = statement.trim_start();
        match code.last_mut() {
            _ if trimmed.trim_start_matches("pub ").starts_with("use ") => imports.push(statement),
            Some(chain) if trimmed.starts_with('.') => chain.push_str(trimmed),
            _ => code.push(statement),
        }
    }
    let lines = code.iter().chain(&imports);
    let words = lines.flat_map(|line| line.split(|c| !is_word(c)));
    let words = words.map(str::to_owned).collect();
    Source {
        file,
        code,
        imports,
        words,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the text before and after each place of a word.
fn places<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let places = code.match_indices(word);
    let around = places.map(move |(at, _)| (&code[..at], &code[at + word.len()..]));
    around.filter(|(before, after)| !before.ends_with(is_word) && !after.starts_with(is_word))
}

fn has_word(code: &str, word: &str) -> bool {
    places(code, word).next().is_some()
}

impl Source {
    /// Whether this source may have a word at all.
    fn may_have(&self, word: &str) -> bool {
        word.contains(|c| !is_word(c)) || self.words.contains(word)
    }

    fn defines_fn(&self, item: &str) -> bool {
        if !self.may_have(item) {
            return false;
        }
        let mut all = self.code.iter().flat_map(|code| places(code, item));
        all.any(|(before, _)| before.ends_with("fn "))
    }

    /// The types whose `impl` or `trait` defines a function; none for a free one. `None` if this
    /// source defines no such function.
    fn owners(&self, item: &str) -> Option<Vec<&str>> {
        let word = |text: &'_ str| text.find(|c| !is_word(c)).unwrap_or(text.len());
        let mut owners: Vec<&str> = Vec::new();
        for code in &self.code {
            if let Some((_, name)) = code
                .split_once("trait ")
                .filter(|_| code.starts_with("pub"))
            {
                owners = vec![&name[..word(name)]];
            } else if let Some(head) = code.strip_prefix("impl") {
                // `impl<T> path::Trait for Type<T>`: the words before a bracket or an end.
                let names = head.split([' ', '<', '>']);
                let names = names.map(|name| name.rsplit("::").next().unwrap_or(name));
                owners = names.map(|name| &name[..word(name)]).collect();
                owners.retain(|name| name.starts_with(char::is_uppercase) && name.len() > 1);
            } else if code == "}" {
                owners.clear();
            }
            if places(code, item).any(|(before, _)| before.ends_with("fn ")) {
                return Some(owners);
            }
        }
        None
    }

    /// Whether this source uses a type, a variant or a constant, beyond defining it.
    fn uses(&self, item: &str) -> bool {
        let kinds = [
            "struct ", "enum ", "trait ", "type ", "mod ", "const ", "static ",
        ];
        let is_use = |(before, after): (&str, &str)| {
            // A variant stands alone where it is defined.
            let is_camel = item.contains(char::is_lowercase);
            let is_variant = is_camel && before.trim().is_empty() && !after.starts_with("::");
            !is_variant && !kinds.iter().any(|kind| before.ends_with(kind))
        };
        let mut code = self.code.iter();
        self.may_have(item)
            && code.any(|code| {
                !code.trim_start().starts_with("impl") && places(code, item).any(is_use)
            })
    }

    /// Whether this source calls a function, or hands it on. Where others have its name, it is
    /// meant by a path, by the name of its type or module in the source, or in the receiver.
    fn calls(&self, item: &str, owners: &[&str], modules: &[&str], is_unique: bool) -> bool {
        if !self.may_have(item) {
            return false;
        }
        let names = if owners.is_empty() { modules } else { owners };
        let is_named = |name: &&str| {
            let mut all = self.code.iter().chain(&self.imports);
            all.any(|code| has_word(code, name))
        };
        let is_meant = is_unique || names.iter().any(is_named);
        // `access` of a `ContainerAccess`, say.
        let last_word = |name: &&str| {
            let begins = name.rfind(char::is_uppercase).unwrap_or_default();
            name[begins..].to_lowercase()
        };
        let mut receivers: Vec<String> = owners.iter().map(|name| name.to_lowercase()).collect();
        receivers.extend(owners.iter().map(last_word));
        self.code.iter().any(|code| {
            places(code, item).any(|(before, after)| {
                let by_name = || {
                    let modules = modules.iter().any(|name| has_word(before, name));
                    modules || receivers.iter().any(|name| has_word(before, name))
                };
                let is_path = before.ends_with("::");
                let is_call = after.starts_with('(') || after.starts_with("::<");
                if owners.is_empty() {
                    let is_other = before.ends_with("fn ") || before.ends_with('.');
                    !is_other && (is_path || is_call || is_unique) && (is_meant || by_name())
                } else {
                    (is_path || is_call && before.ends_with('.')) && (is_meant || by_name())
                }
            })
        })
    }
}

/// Whether the product calls a function, or uses what else has that name.
fn is_used(product: &[Source], path: &str, item: &str) -> bool {
    let Some(home) = product.iter().find(|source| source.file == path) else {
        return false;
    };
    let Some(owners) = home.owners(item) else {
        return product.iter().any(|source| source.uses(item));
    };
    let definitions = product.iter().filter(|source| source.defines_fn(item));
    let is_unique = definitions.count() == 1;
    let module = path.trim_end_matches("/mod.rs").trim_end_matches(".rs");
    // The type that has it, and the functions that return that type.
    let modules: Vec<&str> = module
        .rsplit('/')
        .take_while(|name| *name != "src")
        .take(2)
        .collect();
    let mut callers = product.iter();
    callers.any(|source| source.calls(item, &owners, &modules, is_unique || source.file == path))
}

#[test]
fn every_counterpart_is_called_by_the_product() {
    let (product, page) = (product(), page());
    let mut unused = Vec::new();
    for row in rows(&page) {
        for (path, item) in named(&row.here) {
            let is_double = path.contains("crates/testing/") || path.contains("/fake_engine/");
            if !is_double && !is_used(&product, path, item) {
                unused.push(format!("{}: {path}::{item}", row.seed));
            }
        }
    }
    assert!(
        unused.is_empty(),
        "the product never calls these of docs/seeds.md: {unused:#?}"
    );
}

/// The names of a trait's methods.
fn methods<'a>(code: &'a str, name: &str) -> Vec<&'a str> {
    let (_, body) = code.split_once(&format!("pub trait {name}:")).unwrap();
    let (body, _) = body.split_once("\n}\n").unwrap();
    let methods = body.lines().filter_map(|line| {
        let line = line.trim_start().trim_start_matches("async ");
        line.strip_prefix("fn ")?.split(['(', '<']).next()
    });
    methods.collect()
}

/// Whether the product calls a method of the runtime: on something named `runtime` or `access`, or by a
/// name that no other function has.
fn is_called_on_runtime(product: &[Source], method: &str) -> bool {
    let definitions = product.iter().filter(|source| source.defines_fn(method));
    let is_unique = definitions.count() == 1;
    let call = format!(".{method}(");
    let is_runtime = |receiver: &str| {
        let receiver = receiver.trim_end_matches("()");
        let name = receiver.rsplit(|c: char| !is_word(c)).next();
        name.is_some_and(|name| ["runtime", "access"].contains(&name))
    };
    let mut code = product.iter().flat_map(|source| &source.code);
    code.any(|code| {
        let mut calls = code.match_indices(&call);
        calls.any(|(at, _)| is_unique || is_runtime(&code[..at]))
    })
}

#[test]
fn every_method_of_runtime_is_called_by_the_product() {
    let text = fs::read_to_string(root().join("crates/runtime/src/lib.rs")).unwrap();
    let mut product = product();
    // The runtime itself.
    product.retain(|source| !source.file.starts_with("crates/docker/"));
    for (name, least) in [("Runtime", 20), ("ContainerAccess", 6)] {
        let methods = methods(&text, name);
        assert!(methods.len() >= least, "{name} was not read: {methods:?}");
        let is_uncalled = |method: &&&str| !is_called_on_runtime(&product, method);
        let uncalled: Vec<&&str> = methods.iter().filter(is_uncalled).collect();
        assert!(
            uncalled.is_empty(),
            "nobody calls these of {name}: {uncalled:?}"
        );
    }
}

#[test]
fn a_call_of_something_elses_method_is_none_of_the_runtimes() {
    let home = "pub trait Runtime: Send {\n    async fn status(&self);\n    fn own(&self);\n}\n";
    assert_eq!(methods(home, "Runtime"), ["status", "own"]);
    let other = "impl Theirs {\n    fn status(&self) {}\n}";
    let called = |caller: &str, method: &str| {
        let product = [home, other, caller].map(|text| parsed("src/a.rs".to_owned(), text));
        is_called_on_runtime(&product, method)
    };
    for (caller, method, expected) in [
        (
            "fn f(it: &dyn Runtime) { response.status(); }",
            "status",
            false,
        ),
        ("fn f() { not_runtime.status(); }", "status", false),
        ("fn f() { runtime.status(); }", "status", true),
        (
            "fn f() {\n    self.runtime\n        .status();\n}",
            "status",
            true,
        ),
        ("fn f() { view.access().status(); }", "status", true),
        ("fn f() { it.own(); }", "own", true),
        ("fn f() { own(); }", "own", false),
    ] {
        assert_eq!(called(caller, method), expected, "{caller}");
    }
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
fn what_nobody_calls_is_noticed() {
    let of = |file: &str, text: &str| parsed(file.to_owned(), text);
    let home = "impl Ours {\n    pub fn get(&self) {}\n    pub fn own(&self) {}\n}\npub fn free() {}\npub struct Ours;";
    let other = "impl Theirs {\n    pub fn get(&self) {}\n}";
    let used = |caller: &str, item: &str| {
        let product = [
            ("src/a.rs", home),
            ("src/b.rs", other),
            ("src/c.rs", caller),
        ];
        let product = product.map(|(file, text)| of(file, text));
        is_used(&product, "src/a.rs", item)
    };
    for (caller, item, expected) in [
        ("", "own", false),
        ("// it.own()", "own", false),
        ("use crate::a::own;", "own", false),
        ("fn f() { it.own = 1; }", "own", false),
        ("fn f() { it.own(); }", "own", true),
        ("fn f() {\n    it\n        .own();\n}", "own", true),
        (
            "#[cfg(test)]\nmod tests {\n    fn f() { it.own(); }\n}",
            "own",
            false,
        ),
        // `Theirs` has one, too.
        ("fn f() { it.get(); }", "get", false),
        ("fn f(it: &Ours) { it.get(); }", "get", true),
        ("fn f() { a.get(); }", "get", true),
        ("fn f() { map(Ours::get); }", "get", true),
        ("fn f() { free(); }", "free", true),
        ("fn f() { map(free); }", "free", true),
        ("fn f() { it.free(); }", "free", false),
        ("", "Ours", false),
        ("use crate::a::Ours;", "Ours", false),
        ("fn f(it: &Ours) {}", "Ours", true),
    ] {
        assert_eq!(used(caller, item), expected, "{item}: {caller}");
    }
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
