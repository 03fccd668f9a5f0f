//! Credential plug-ins: the program in a kubeconfig's `users[].user.exec`.
//!
//! We don't use kube's implementation: it runs the program when a connection is created and within
//! requests, without a deadline, and its errors contain the program's arguments and output. Here
//! [`CredentialsTask`](super::CredentialsTask) runs it, one run at a time; its output is used, and
//! never reported.
//!
//! Upstream: `k8s.io/client-go/plugin/pkg/client/auth/exec/exec.go`.

use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use kube::config::ExecConfig;
use serde::Deserialize;
use serde_json::json;
use tokio::process::Command;

use mirrorlet_core::api::Timestamp;
use mirrorlet_host::program::{self, Limits};

/// The limits of a plug-in: it may ask a cloud for a token, and a token or a certificate has a few thousand
/// bytes.
const LIMITS: Limits = Limits {
    deadline: Duration::from_mins(1),
    output_max: 256 << 10,
};

/// A credential plug-in.
#[derive(Clone)]
pub(super) struct Plugin {
    program: String,
    exec: ExecConfig,
}

/// Credentials that a plug-in made.
#[derive(Default)]
pub(super) struct Credentials {
    token: Option<String>,
    /// A certificate and its key, as PEM.
    certificate: Option<(String, String)>,
    /// When they end; none where the plug-in didn't say.
    pub ends: Option<Timestamp>,
}

impl Credentials {
    /// Whether they contain a client certificate.
    pub(super) fn has_certificate(&self) -> bool {
        self.certificate.is_some()
    }
}

/// The configuration of a connection with a plug-in's credentials. Without the plug-in, which kube
/// would run.
pub(super) fn configured(config: &kube::Config, made: Option<&Credentials>) -> kube::Config {
    let mut config = config.clone();
    let user = &mut config.auth_info;
    user.exec = None;
    if let Some(token) = made.and_then(|made| made.token.clone()) {
        user.token = Some(token.into());
    }
    if let Some((chain, key)) = made.and_then(|made| made.certificate.as_ref()) {
        user.client_certificate = None;
        user.client_key = None;
        user.client_certificate_data = Some(STANDARD.encode(chain));
        user.client_key_data = Some(STANDARD.encode(key).into());
    }
    config
}

impl Plugin {
    /// The plug-in of a kubeconfig's user. None if the user has credentials without it.
    ///
    /// # Errors
    /// The user configures the program in an unsupported way.
    pub(super) fn of(config: &kube::Config) -> Result<Option<Self>, String> {
        let user = &config.auth_info;
        let provider = user.auth_provider.as_ref();
        if provider.is_some_and(|provider| provider.config.contains_key("cmd-path")) {
            return Err(
                "its auth-provider runs a program, which is not supported: use exec".to_owned(),
            );
        }
        let has_password = user.username.is_some() && user.password.is_some();
        if has_password || user.token.is_some() || user.token_file.is_some() {
            return Ok(None);
        }
        let Some(exec) = user.exec.clone().filter(|_| provider.is_none()) else {
            return Ok(None);
        };
        let program = exec.command.clone().filter(|program| !program.is_empty());
        let program = program.ok_or("its exec has no command")?;
        Ok(Some(Self { program, exec }))
    }

    /// The problem while it has not answered yet.
    pub(super) fn unanswered(&self) -> String {
        self.failed("has not answered yet")
    }

    fn failed(&self, how: &str) -> String {
        format!("its credential plug-in {} {how}", self.program)
    }

    /// Runs the plug-in.
    ///
    /// # Errors
    /// The program's name and how it failed; nothing of its input or output.
    ///
    /// # Cancel safety
    /// The program is killed, with all its children.
    pub(super) async fn run(&self) -> Result<Credentials, String> {
        let answer = self.answer().await;
        answer
            .and_then(|text| credentials_of(&text).map_err(str::to_owned))
            .map_err(|how| self.failed(&how))
    }

    /// Its output.
    async fn answer(&self) -> Result<Vec<u8>, String> {
        let variables = self.exec.env.iter().flatten();
        let variables = variables.filter_map(|one| Some((one.get("name")?, one.get("value")?)));
        let mut command = Command::new(&self.program);
        command
            .args(self.exec.args.iter().flatten())
            .envs(variables)
            .env("KUBERNETES_EXEC_INFO", self.request())
            // As upstream: it may say there what its user can mend.
            .stderr(Stdio::inherit());
        let ended = program::run(&mut command, b"", LIMITS).await;
        let ended = ended.map_err(|error| error.to_string())?;
        if ended.status.success() {
            Ok(ended.output)
        } else {
            Err(format!("failed: {}", ended.status))
        }
    }

    /// The `ExecCredential` that it is started with.
    fn request(&self) -> String {
        let mut spec = json!({"interactive": false});
        if self.exec.provide_cluster_info {
            spec["cluster"] = serde_json::to_value(&self.exec.cluster).unwrap_or_default();
        }
        let version = &self.exec.api_version;
        json!({"apiVersion": version, "kind": "ExecCredential", "spec": spec}).to_string()
    }
}

/// The output of a plug-in: an `ExecCredential`.
#[derive(Deserialize)]
struct Answer {
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

/// Reads a plug-in's output. An error has no part of it.
fn credentials_of(text: &[u8]) -> Result<Credentials, &'static str> {
    // Some write YAML, which upstream reads as well.
    let text = std::str::from_utf8(text).map_err(|_| "returned output that is not UTF-8")?;
    let answer: Result<Answer, _> = serde_saphyr::from_str(text);
    let answer = answer.map_err(|_| "returned output that is not an ExecCredential")?;
    let status = answer
        .status
        .ok_or("returned an ExecCredential without a status")?;
    let ends = status
        .expiration_timestamp
        .map(|time| time.parse::<Timestamp>());
    let ends = ends.transpose();
    let token = status.token.filter(|token| !token.is_empty());
    let can_be_sent = |token: &String| HeaderValue::try_from(format!("Bearer {token}")).is_ok();
    if !token.iter().all(can_be_sent) {
        return Err("returned a token with invalid characters");
    }
    let certificate = status.client_certificate_data.zip(status.client_key_data);
    if token.is_none() && certificate.is_none() {
        return Err("returned neither a token nor a certificate with its key");
    }
    Ok(Credentials {
        token,
        certificate,
        ends: ends.map_err(|_| "returned an invalid expirationTimestamp")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "https://127.0.0.1:1";

    fn plugin(script: &str) -> Plugin {
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh",
            "args": ["-c", script], "env": [{"name": "S", "value": "geheim"}],
        });
        Plugin {
            program: "sh".to_owned(),
            exec: serde_json::from_value(exec).unwrap(),
        }
    }

    #[tokio::test]
    async fn a_plug_in_answers_with_a_token_or_a_certificate() {
        let config = kube::Config::new(URL.parse().unwrap());
        let script = r#"echo "{kind: ExecCredential, status: {token: $S, expirationTimestamp: '2030-01-01T00:00:00Z'}}""#;
        let made = plugin(script).run().await.unwrap_or_default();
        // node 6c
        assert_eq!(made.token.as_deref(), Some("geheim"));
        assert_eq!(made.ends, Some("2030-01-01T00:00:00Z".parse().unwrap()));
        let user = configured(&config, Some(&made)).auth_info;
        assert!(user.token.is_some() && user.exec.is_none());
        let json = r#"{"status": {"clientCertificateData": "c", "clientKeyData": "k"}}"#;
        let made = credentials_of(json.as_bytes()).unwrap_or_default();
        assert!(made.has_certificate() && made.ends.is_none());
        let user = configured(&config, Some(&made)).auth_info;
        assert_eq!(user.client_certificate_data, Some(STANDARD.encode("c")));
        assert!(user.token.is_none() && user.client_key_data.is_some());
        // It is told what it is asked for.
        let script = r#"case "$KUBERNETES_EXEC_INFO" in *client.authentication.k8s.io/v1*) echo "{status: {token: t}}";; esac"#;
        assert!(plugin(script).run().await.is_ok());
    }

    #[tokio::test]
    async fn a_plug_in_that_fails_is_reported_without_what_it_knows() {
        for (script, expected) in [
            ("echo $S; exit 3", "failed: exit status: 3"),
            ("echo $S", "returned output that is not an ExecCredential"),
            ("echo '{}'", "returned an ExecCredential without a status"),
            (
                "echo '{status: {}}'",
                "returned neither a token nor a certificate with its key",
            ),
            (
                r#"echo "{status: {token: t, expirationTimestamp: $S}}""#,
                "returned an invalid expirationTimestamp",
            ),
            (
                r#"printf '{"status": {"token": "a\\nb"}}'"#,
                "returned a token with invalid characters",
            ),
        ] {
            let error = plugin(script).run().await.err();
            // node 6d
            assert_eq!(
                error,
                Some(format!("its credential plug-in sh {expected}")),
                "{script}"
            );
        }
        let mut none = plugin("");
        none.program = "/nonexistent/plug-in".to_owned();
        let error = none.run().await.err().unwrap_or_default();
        assert!(error.contains("can't be started: No such file"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_plug_in_that_hangs_is_given_up() {
        let error = plugin("sleep 1000").run().await.err();
        let expected = "its credential plug-in sh gave no answer within 60 s";
        // node 6d
        assert_eq!(error.as_deref(), Some(expected));
    }

    #[test]
    fn a_user_with_credentials_needs_no_plug_in() {
        let with = |user: serde_json::Value| {
            let mut config = kube::Config::new(URL.parse().unwrap());
            config.auth_info = serde_json::from_value(user).unwrap();
            Plugin::of(&config).map(|plugin| plugin.map(|plugin| plugin.program))
        };
        let exec = json!({"command": "p"});
        assert_eq!(with(json!({"exec": exec})), Ok(Some("p".to_owned())));
        assert_eq!(with(json!({"exec": exec, "token": "t"})), Ok(None));
        assert_eq!(with(json!({"exec": exec, "tokenFile": "t"})), Ok(None));
        assert_eq!(with(json!({})), Ok(None));
        assert!(with(json!({"exec": {"args": []}})).is_err());
        let provider = json!({"name": "gcp", "config": {"cmd-path": "gcloud"}});
        // node 6d
        assert!(with(json!({"auth-provider": provider})).is_err());
    }
}
