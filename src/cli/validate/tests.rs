//! Runs of the validation: what is printed, and the exit code.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

const GOOD: &str =
    "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, image: a}]}}\n";

fn run(paths: &[PathBuf], output: ValidateOutput, stdin: &str) -> (u8, String) {
    run_by(Rules::default(), paths, output, stdin)
}

fn run_by(rules: Rules, paths: &[PathBuf], output: ValidateOutput, stdin: &str) -> (u8, String) {
    let (node_name, mut out) = (NodeName::from("n"), Vec::new());
    let stdin = &mut stdin.as_bytes();
    let outcome = validate(paths, output, &node_name, rules, false, stdin, &mut out);
    let code = outcome.map_or_else(|failure| failure.exit_code(), |()| 0);
    (code, String::from_utf8(out).unwrap())
}

#[test]
fn strict_fails_on_warnings() {
    let twice = GOOD.replace("image: a", "image: a, image: a");
    for (text, strict, expected) in [(GOOD, true, 0), (&twice, false, 0), (&twice, true, 1)] {
        let rules = Rules {
            strict,
            ..Rules::default()
        };
        let (code, _) = run_by(rules, &[PathBuf::from(STDIN)], ValidateOutput::Text, text);
        assert_eq!(code, expected, "strict: {strict}");
    }
}

#[test]
fn empty_dirs_are_noted_once() {
    let with = |name: &str| {
        let spec = "{containers: [{name: a, image: a}], volumes: [{name: tmp, emptyDir: {}}]}";
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {spec}\n")
    };
    let two = format!("{}---\n{}", with("b"), with("c"));
    let note = |text: &str| {
        let (code, text) = run(&[PathBuf::from(STDIN)], ValidateOutput::Text, text);
        // A note is no warning.
        assert!(text.ends_with(": 0 errors, 0 warnings\n"), "{text}");
        let notes: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("note: "))
            .collect();
        (code, notes.join("\n"))
    };
    let words = "note: the emptyDir volumes of 2 pods lose their files with each edit of the pod; \
                 a persistentVolumeClaim keeps its files";
    // box 21
    assert_eq!(note(&two), (0, words.to_owned()));
    assert_eq!(note(GOOD), (0, String::new()));
    let (_, json) = run(&[PathBuf::from(STDIN)], ValidateOutput::Json, &two);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["summary"]["emptyDirPods"], 2);
}

#[test]
fn a_directory_is_read_as_the_agent_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("a.yaml", GOOD),
        ("b.yml", GOOD),
        ("c.json", "{}"),
        (".d.yaml", "?"),
        ("e.yaml.bak", "?"),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    fs::create_dir(dir.path().join("f.yaml")).unwrap();
    let paths = [dir.path().to_path_buf()];
    let (code, text) = run(&paths, ValidateOutput::Text, "");
    assert_eq!(code, 1);
    let text = text.replace(&dir.path().display().to_string(), "DIR");
    insta::assert_snapshot!(text);
    let (_, json) = run(&paths, ValidateOutput::Json, "");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let codes: Vec<&str> = json["diagnostics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["code"].as_str().unwrap())
        .collect();
    assert_eq!(
        codes,
        ["duplicate-pod", "wrong-kind", "wrong-kind", "unreadable"]
    );
    assert_eq!(json["summary"]["errors"], 4);
    assert_eq!(json["summary"]["ignored"].as_array().unwrap().len(), 2);
}

#[test]
fn a_profile_that_this_machine_does_not_enforce_is_warned_of() {
    let text = GOOD.replace(
        "spec: {",
        "spec: {securityContext: {appArmorProfile: {type: RuntimeDefault}}, ",
    );
    let (code, text) = run(&[PathBuf::from(STDIN)], ValidateOutput::Text, &text);
    // tenants A1
    assert_eq!(code, 0);
    let words =
        "an agent on this machine would refuse the pod: AppArmor is not enabled on the host";
    assert!(text.contains(words) && text.contains("1 warning"), "{text}");
}

#[test]
fn a_directory_with_too_many_values_is_refused_as_by_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let args = "x, ".repeat(3_000);
    // Some 60,000 values, of 20 pods.
    let large = |name: &str| {
        format!(
            "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: 20
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      containers:
      - {{name: a, image: a, args: [{args}]}}
"
        )
    };
    for (name, text) in [
        ("a.yaml", large("one")),
        ("b.yaml", large("two")),
        // What still fits is read.
        ("c.yaml", GOOD.to_owned()),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let (code, text) = run(&[dir.path().to_path_buf()], ValidateOutput::Text, "");
    assert_eq!(code, 1);
    assert!(text.contains(": 1 error, "), "{text}");
    let (_, told) = text.split_once("error[too-large]: ").unwrap();
    let words = "the manifests of this directory would have 12";
    let place = format!("{}/b.yaml", dir.path().display());
    assert!(told.starts_with(words) && told.contains(&place), "{told}");
    // A file that is named alone may be all there is.
    let files = ["a.yaml", "b.yaml"].map(|name| dir.path().join(name));
    let (code, text) = run(&files, ValidateOutput::Text, "");
    assert_eq!(code, 0, "{text}");
}

#[test]
fn two_pods_with_one_written_uid_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let named = |name: &str, uid: &str| {
        let metadata = format!("metadata: {{name: {name}, uid: {uid}}}");
        GOOD.replace("metadata: {name: a}", &metadata)
    };
    for (name, text) in [
        ("a.yaml", named("a", "one")),
        ("b.yaml", named("b", "one")),
        ("c.yaml", named("c", "two")),
        // Of the same name, which is told first.
        ("d.yaml", named("a", "two")),
        ("e.yaml", GOOD.replace("name: a}, spec", "name: e}, spec")),
        ("f.yaml", GOOD.replace("name: a}, spec", "name: f}, spec")),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let paths = [dir.path().to_path_buf()];
    let (code, text) = run(&paths, ValidateOutput::Text, "");
    assert_eq!(code, 1);
    let text = text.replace(&dir.path().display().to_string(), "DIR");
    let words = "pod b-n_default has the same UID as pod a-n_default, defined by DIR/a.yaml:1:1";
    assert!(text.contains(words) && text.contains(COMPUTE_UID), "{text}");
    assert_eq!(text.matches("has the same UID").count(), 1, "{text}");
    let words = "pod a-n_default is already defined by DIR/a.yaml:1:1";
    assert!(text.contains(words), "{text}");
    assert!(text.contains(": 2 errors, "), "{text}");
}

#[test]
fn exit_codes_tell_fine_from_wrong_from_missing() {
    let stdin = [PathBuf::from(STDIN)];
    let (code, text) = run(&stdin, ValidateOutput::Text, GOOD);
    assert_eq!(code, 0);
    assert_eq!(text, "1 file, 1 valid pod: 0 errors, 0 warnings\n");
    let warned = GOOD.replace("spec: {", "spec: {nodeSelector: {a: b}, ");
    let (code, text) = run(&stdin, ValidateOutput::Text, &warned);
    assert_eq!(code, 0);
    assert!(text.ends_with("0 errors, 1 warning\n"), "{text}");
    assert_eq!(run(&stdin, ValidateOutput::Text, "").0, 1);
    let missing = [PathBuf::from("no/such/file.yaml")];
    assert_eq!(run(&missing, ValidateOutput::Text, "").0, 2);
}

#[test]
fn references_of_a_directory_are_followed_and_no_secret_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let web = "apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: web
    image: web:1
    env:
    - {name: A, valueFrom: {configMapKeyRef: {name: settings, key: port}}}
    - {name: B, valueFrom: {secretKeyRef: {name: login, key: password}}}
    - {name: C, valueFrom: {secretKeyRef: {name: other, key: k, optional: true}}}
    envFrom:
    - configMapRef: {name: nowhere}
    - secretRef: {name: broken}
";
    let secrets = "apiVersion: v1
kind: Secret
metadata: {name: login}
stringData: {password: hunter2, password: hunter2}
---
apiVersion: v1
kind: Secret
metadata: {name: broken}
data: {password: hunter2!}
";
    let settings =
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {colour: green}}\n";
    for (name, text) in [
        ("web.yaml", web),
        ("secrets.yaml", secrets),
        ("settings.yaml", settings),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let (code, text) = run(&[dir.path().to_path_buf()], ValidateOutput::Text, "");
    assert_eq!(code, 1);
    let text = text.replace(&dir.path().display().to_string(), "DIR");
    // box 1, box 4
    assert!(!text.contains("hunter2"), "{text}");
    insta::assert_snapshot!(text);
    // Of a file that is named alone, others may define what it needs.
    let (code, text) = run(&[dir.path().join("web.yaml")], ValidateOutput::Text, "");
    assert_eq!(code, 0, "{text}");
    assert!(text.ends_with("0 errors, 4 warnings\n"), "{text}");
    let hidden = format!("{secrets}---\n]");
    let (_, text) = run(&[PathBuf::from(STDIN)], ValidateOutput::Text, &hidden);
    assert!(
        text.contains("error[half-written]") && !text.contains("hunter2"),
        "{text}"
    );
}
