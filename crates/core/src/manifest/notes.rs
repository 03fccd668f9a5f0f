//! The messages about fields that are unknown, or need special treatment.

use super::check;
use super::problems::At;
use super::support::Verdict;
use crate::api::{Code, Severity};
use crate::decode;
use crate::path::{Path, Segment};

/// Notes a field that is not known.
pub(super) fn note_unknown(unknown: &decode::UnknownField, root: &At<'_>) {
    let (path, at) = (&unknown.path, root.join(&unknown.path));
    // No other spec has a claimRef: this one is a PersistentVolume's.
    let of_volume = unknown.known.contains(&"claimRef");
    if let Some(kind) = check::unsupported_source(path).filter(|_| of_volume) {
        let message = format!("volumes of type {kind} are not supported");
        at.report_key(Severity::Error, Code::UnsupportedField, message);
        at.help("mirrorlet supports PersistentVolumes of type hostPath and local; for other storage, annotate a claim with mirrorlet.dev/volume-driver");
        return;
    }
    if is_volume_source(path) {
        // Left out it would silently be an emptyDir.
        let message = "unknown volume type";
        at.report_key(Severity::Error, Code::UnsupportedField, message);
    } else {
        let message = "unknown field; it is ignored";
        at.report_key(Severity::Warning, Code::UnknownField, message);
    }
    if let Some(Segment::Key(name)) = path.0.last()
        && let Some(known) = decode::closest(name, unknown.known)
    {
        at.help(format!("did you mean {known}?"));
    }
}

/// Whether this is a field of an entry of a pod's or a template's `spec.volumes`.
fn is_volume_source(path: &Path) -> bool {
    matches!(path.0.as_slice(), [.., Segment::Key(spec), Segment::Key(volumes), Segment::Index(_), Segment::Key(_)]
        if spec == "spec" && volumes == "volumes")
}

/// Reports a field that this program treats specially.
pub(super) fn note_special(verdict: Verdict, at: &At<'_>) {
    let (severity, code, message) = match verdict {
        Verdict::Unsupported(why) | Verdict::NotInManifest(why) => {
            (Severity::Error, Code::UnsupportedField, why.to_owned())
        }
        Verdict::NoEffect(why) | Verdict::NoEffectAnywhere(why) => (
            Severity::Warning,
            Code::UnsupportedField,
            format!("this has no effect: {why}"),
        ),
        Verdict::OnNode(why) => (Severity::Warning, Code::UnsupportedField, why.to_owned()),
        Verdict::Forbidden(resource) | Verdict::ForbiddenAndUnsupported(resource) => (
            Severity::Error,
            Code::ForbiddenReference,
            format!("static pods may not reference {resource}"),
        ),
    };
    at.report_key(severity, code, message);
}
