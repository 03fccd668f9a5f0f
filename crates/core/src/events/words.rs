//! Words of events.

/// Digits of a container id.
const ID_LEN: usize = 64;

/// Replaces every container id in the message by the container's name, so that events about two
/// instances have the same message. Digests (`sha256:…`) stay.
///
/// Upstream: `recordContainerEvent` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`.
pub fn without_ids(message: &str, name: &str) -> String {
    let mut out = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(start) = rest.find(|c: char| c.is_ascii_hexdigit()) {
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        let end = from
            .find(|c: char| !c.is_ascii_alphanumeric())
            .unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        let is_id = word.len() == ID_LEN && word.bytes().all(|b| b.is_ascii_hexdigit());
        let own_word = !out.ends_with(|c: char| c.is_ascii_alphanumeric());
        if is_id && own_word && !out.ends_with("sha256:") {
            out.push_str(name);
        } else {
            out.push_str(word);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
