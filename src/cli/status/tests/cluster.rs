//! Lines about a Node that its cluster can't use, and their causes.

use super::*;
use mirrorlet_core::api::report::CredentialsFault;

fn api(report: &mut StatusReport) -> &mut ApiReport {
    report.api.get_or_insert_default()
}

#[test]
fn rejected_credentials_are_told_first_and_are_not_well() {
    let mut report = of_a_node();
    report.pods.clear();
    assert!(report.is_well());
    api(&mut report).rejected_since = Some(at(296));
    // node 6c
    assert!(!report.is_well());
    let text = plain(&report, false);
    let words = "The API server at https://10.0.0.1:6443/ rejects the credentials (for 34s): \
                 401 Unauthorized; replace the token or certificate of the kubeconfig\n";
    assert!(text.starts_with(words), "{text}");
    let words = "API server https://10.0.0.1:6443/: rejects the credentials\n";
    assert!(text.contains(words), "{text}");
    api(&mut report).certificate_ends = Some(at(296));
    api(&mut report).certificate_error = Some("replace the kubeconfig /k".to_owned());
    let text = plain(&report, false);
    let words = "client certificate expired 34s ago; replace the kubeconfig /k\n";
    assert_eq!(text.matches(words).count(), 2, "{text}");
}

#[test]
fn an_old_lease_makes_a_node_not_ready() {
    let mut report = of_a_node();
    let said = |report: &StatusReport| {
        let text = plain(report, false);
        let line = text.lines().find(|line| line.starts_with("  box-docker:"));
        line.unwrap_or_default().to_owned()
    };
    let node = |renewed| NodeReport {
        lease_renewed: Some(at(renewed)),
        ..of_a_node().node.unwrap_or_default()
    };
    report.node = Some(node(290));
    let line = said(&report);
    assert!(line.starts_with("  box-docker: Ready, "), "{line}");
    report.node = Some(node(289));
    let line = said(&report);
    // node 6f
    assert!(
        line.contains("the cluster counts this Node as NotReady"),
        "{line}"
    );
    assert!(!line.contains(": Ready"), "{line}");
    assert!(line.ends_with("Lease renewed 41s ago"), "{line}");
    report.node = Some(NodeReport {
        name: "box-docker".to_owned(),
        ..NodeReport::default()
    });
    assert_eq!(said(&report), "  box-docker: not registered");
    report.engine.reachable = false;
    let words = "  box-docker: not registered: the Docker Engine has not answered yet";
    // node 6p
    assert_eq!(said(&report), words);
    api(&mut report).reachable = false;
    api(&mut report).unreachable_since = Some(at(30));
    let words = "  box-docker: not known while the API server is unreachable";
    assert_eq!(said(&report), words);
}

#[test]
fn unusable_credentials_and_a_node_api_without_authorities_are_told() {
    let mut report = of_a_node();
    report.pods.clear();
    report.node.get_or_insert_default().node_api_error = Some("refused".to_owned());
    assert!(report.is_well());
    let text = plain(&report, false);
    let words = "  node API: the API server can't call it (kubectl logs, exec, top): refused\n    help: set --client-ca-file";
    // node 6d
    assert!(text.contains(words), "{text}");
    let error = "the kubeconfig /k can't be used: not YAML";
    api(&mut report).credentials_error = Some(error.to_owned());
    assert!(!report.is_well());
    let kept = "  new credentials are not used: E; the previous credentials are used until the agent restarts\n";
    let plugin = "  no new credentials: E; the credential plug-in is run again\n";
    let missing = "  no credentials: E; retrying\n";
    // Whether the API server answers changes none of it.
    for unreachable_since in [None, Some(at(30))] {
        api(&mut report).reachable = unreachable_since.is_none();
        api(&mut report).unreachable_since = unreachable_since;
        for (fault, words) in [
            // As an agent reports it that knows no kinds.
            (None, kept),
            (Some(CredentialsFault::Replaced), kept),
            (Some(CredentialsFault::Plugin), plugin),
            (Some(CredentialsFault::Missing), missing),
        ] {
            api(&mut report).credentials_fault = fault;
            let text = plain(&report, false).replace(error, "E");
            // node 6d
            assert!(text.contains(words), "{fault:?}: {text}");
        }
    }
}

#[test]
fn the_kind_of_a_problem_with_credentials_may_be_unknown() {
    let mut report = ApiReport {
        credentials_error: Some("not YAML".to_owned()),
        ..ApiReport::default()
    };
    let old = r#"{"server":"","reachable":false,"credentialsError":"not YAML"}"#;
    // node 6d
    assert_eq!(serde_json::to_string(&report).unwrap(), old);
    assert_eq!(serde_json::from_str::<ApiReport>(old).unwrap(), report);
    report.credentials_fault = Some(CredentialsFault::Plugin);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["credentialsFault"], "plugin");
}
