//! User, capabilities and profiles of a service's container.

use crate::project::Service;
use crate::tree::Node;
use crate::value::Map;

use super::pod::{FAILURE_ACTION, keeps_failed};
use super::{Build, entry_at, field, place_of};

impl Build<'_, '_> {
    /// The security context of a service's container.
    pub(super) fn security(&mut self, service: &Service) -> Map {
        let mut security = Map::new();
        self.user(service, &mut security);
        for (key, entry) in [
            ("privileged", "privileged"),
            ("read_only", "readOnlyRootFilesystem"),
        ] {
            if service.node.get(key).and_then(Node::bool) == Some(true) {
                security.put(entry, true);
            }
        }
        let mut capabilities = Map::new();
        for (key, entry) in [("cap_add", "add"), ("cap_drop", "drop")] {
            let names = service.node.get(key).map(Node::texts).unwrap_or_default();
            let names = names.iter().map(|name| {
                let name = name.to_ascii_uppercase();
                name.strip_prefix("CAP_").unwrap_or(&name).to_owned()
            });
            capabilities.put_filled(entry, names.collect::<Vec<_>>());
        }
        security.put_filled("capabilities", capabilities);
        self.options_of(service, &mut security);
        security
    }

    /// Reports settings of a service that apply to its whole pod: namespaces of the host, groups, and
    /// that a failed version is not rolled back.
    pub(super) fn check_shared(&mut self, services: &[&Service]) {
        for service in services {
            for key in ["pid", "ipc", "group_add"] {
                let Some(value) = service.node.set(key) else {
                    continue;
                };
                let is_asked = value.text().as_deref() == Some("host") || !value.items().is_empty();
                let mut others = services.iter();
                if is_asked && others.any(|other| other.node.set(key) != Some(value)) {
                    let message = "carried over to the whole pod: all containers of the pod get it, not only that of this service";
                    let (place, field) = (place_of(service, key), field(service, key));
                    self.differs(&place, field, message.to_owned(), "");
                }
            }
            if keeps_failed(service)
                && services.iter().any(|other| !keeps_failed(other))
                && let Some(entry) = entry_at(service, FAILURE_ACTION)
            {
                let message = "carried over to the whole pod: a version of the pod that fails is not undone, whichever of its services fails";
                let field = field(service, &FAILURE_ACTION.join("."));
                self.differs(&entry.place, field, message.to_owned(), "");
            }
        }
    }

    fn user(&mut self, service: &Service, security: &mut Map) {
        let user = service.node.set("user").and_then(Node::text);
        // An empty one is the image's own.
        let Some(user) = user.filter(|user| !user.is_empty()) else {
            return;
        };
        let (user, group) = match user.split_once(':') {
            Some((user, group)) => (user.to_owned(), Some(group.to_owned())),
            None => (user, None),
        };
        // In every image, root is 0.
        let number = |text: &str| match text.trim() {
            "root" => Some(0),
            text => text.parse::<i64>().ok(),
        };
        if let Some(user) = number(&user) {
            security.put("runAsUser", user);
        } else {
            let why = "a user's name: a manifest takes only numbers";
            self.lost_key(
                service,
                "user",
                why,
                "write the user's number, UID or UID:GID",
            );
            return;
        }
        match group.map(|group| number(&group)) {
            Some(Some(group)) => security.put("runAsGroup", group),
            Some(None) => {
                let why = "a group's name: a manifest takes only numbers";
                self.lost_key(service, "user", why, "write the group's number, UID:GID");
            }
            None => {}
        }
    }

    fn options_of(&mut self, service: &Service, security: &mut Map) {
        let mut selinux = Map::new();
        let is_privileged = security.get("privileged").is_some();
        for item in service.node.items_of("security_opt") {
            let text = item.text().unwrap_or_default();
            let (name, value) = text
                .split_once('=')
                .or_else(|| text.split_once(':'))
                .unwrap_or((&text, "true"));
            let path = field(service, "security_opt");
            let profile = |kind: &str| Map::new().with("type", kind);
            match (name, value) {
                ("no-new-privileges", "false") => {}
                ("no-new-privileges", _) if is_privileged => {
                    let why = "a privileged container can gain privileges";
                    self.lost(&item.place, path, why, "");
                }
                ("no-new-privileges", _) => security.put("allowPrivilegeEscalation", false),
                ("seccomp", "builtin") => {
                    security.put("seccompProfile", profile("RuntimeDefault"));
                }
                ("seccomp", "unconfined") => security.put("seccompProfile", profile("Unconfined")),
                ("seccomp", _) => {
                    let why =
                        "a manifest names a profile below seccomp/ in mirrorlet's root directory";
                    let help = "copy it there, and write seccompProfile: {type: Localhost, localhostProfile: NAME}";
                    self.lost(&item.place, path, why, help);
                }
                ("apparmor", "unconfined") => {
                    security.put("appArmorProfile", profile("Unconfined"));
                }
                ("apparmor", "docker-default") => {
                    security.put("appArmorProfile", profile("RuntimeDefault"));
                }
                ("apparmor", name) => {
                    let profile = profile("Localhost").with("localhostProfile", name);
                    security.put("appArmorProfile", profile);
                }
                ("label", label) => match label.split_once(':') {
                    Some((key @ ("user" | "role" | "type" | "level"), value)) => {
                        selinux.put(key, value);
                    }
                    _ => self.lost(
                        &item.place,
                        path,
                        "only user, role, type and level of a label are supported",
                        "",
                    ),
                },
                _ => self.lost(&item.place, path, "a manifest has no such option", ""),
            }
        }
        security.put_filled("seLinuxOptions", selinux);
    }
}
