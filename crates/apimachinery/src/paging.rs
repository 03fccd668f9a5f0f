//! Lists, whole and in pages, of the current revision and of older ones.
//!
//! All pages of a list show the objects of one revision: that of the first page.
//!
//! Upstream: `apiserver/pkg/storage/etcd3/store.go` (`GetList`), `apiserver/pkg/storage/cacher`.

use std::sync::Arc;

use serde_json::Value;

use crate::cache::Cache;
use crate::meta;
use crate::options::{ListOptions, Token, VersionMatch};
use crate::resources::Resource;
use crate::selector::Selector;
use crate::status::Status;

/// An answer to a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The objects, by namespace and name.
    pub objects: Vec<Arc<Value>>,
    /// The revision at which they were like this.
    pub revision: u64,
    /// The continue token; none on the last page.
    pub token: Option<String>,
    /// The number of objects that follow, if it is known without looking at them.
    pub remaining: Option<usize>,
}

/// The page of a list that these options select, of one namespace or of all (empty).
///
/// # Errors
/// The revision is in the future, or so old that it is no longer known.
pub fn page(
    cache: &Cache,
    resource: &'static Resource,
    namespace: &str,
    selector: &Selector,
    options: &ListOptions,
) -> Result<Page, Status> {
    let at = |revision| cache.list_at(revision, resource, namespace, selector);
    let now = || (cache.revision(), cache.list(resource, namespace, selector));
    let mut limit = options.limit;
    let (revision, mut objects) = match (&options.token, options.resource_version) {
        (Some(token), _) => {
            let (revision, mut objects) = match token.revision {
                Some(revision) => {
                    let objects = at(revision).map_err(|status| go_on_otherwise(status, token))?;
                    (revision, objects)
                }
                None => now(),
            };
            objects
                .retain(|object| place(object) > (token.after.0.as_str(), token.after.1.as_str()));
            (revision, objects)
        }
        (None, Some(wanted)) if wanted > 0 => {
            let exact = options.version_match == Some(VersionMatch::Exact);
            // As upstream, for clients that are older than the parameter.
            if exact || (options.version_match.is_none() && limit > 0) {
                (wanted, at(wanted)?)
            } else if wanted > cache.revision() {
                return Err(Status::too_large_version(wanted, cache.revision()));
            } else {
                now()
            }
        }
        (None, Some(_)) => {
            // Any revision will do: what upstream has in memory it gives at once.
            limit = 0;
            now()
        }
        (None, None) => now(),
    };
    let mut page = Page {
        objects: Vec::new(),
        revision,
        token: None,
        remaining: None,
    };
    if limit > 0 && objects.len() > limit {
        let rest = objects.split_off(limit).len();
        let is_all = options.label_selector.is_empty() && options.field_selector.is_empty();
        page.remaining = is_all.then_some(rest);
        page.token = objects.last().map(|last| {
            let (namespace, name) = place(last);
            let after = (namespace.to_owned(), name.to_owned());
            let revision = Some(revision);
            Token { revision, after }.text()
        });
    }
    page.objects = objects;
    Ok(page)
}

fn place(object: &Value) -> (&str, &str) {
    (meta::namespace(object), meta::name(object))
}

/// The error for a list that took too long, with a token to continue with the current objects.
fn go_on_otherwise(status: Status, token: &Token) -> Status {
    if status.code != 410 {
        return status;
    }
    let token = Token {
        revision: None,
        after: token.after.clone(),
    };
    Status {
        message: "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.".to_owned(),
        token: Some(token.text()),
        ..status
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::cache::Key;
    use crate::resources::PODS;

    fn pods(names: &[u8]) -> std::collections::BTreeMap<Key, Value> {
        let object = |name: &u8| {
            let (namespace, name) = (format!("n{}", name % 3), format!("p{name}"));
            let metadata = json!({"name": name, "namespace": namespace, "uid": name});
            (
                Key::new(&PODS, namespace, name),
                json!({"metadata": metadata}),
            )
        };
        names.iter().map(object).collect()
    }

    fn ask(cache: &Cache, query: &str) -> Result<Page, Status> {
        let query: Vec<_> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let options = ListOptions::parse(&query).unwrap();
        let selector = Selector::parse(&options.label_selector, &options.field_selector, &PODS);
        page(cache, &PODS, "", &selector.unwrap(), &options)
    }

    #[test]
    fn revisions_mean_what_they_do_upstream() {
        let mut cache = Cache::new(10);
        cache.replace(pods(&[1, 2, 3]));
        cache.replace(pods(&[1, 2, 3, 4]));
        let sizes = |query: &str| {
            ask(&cache, query)
                .map(|page| (page.revision, page.objects.len(), page.remaining))
                .map_err(|status| status.code)
        };
        for (query, expected) in [
            ("", Ok((14, 4, None))),
            ("resourceVersion=0", Ok((14, 4, None))),
            ("resourceVersion=0&limit=2", Ok((14, 4, None))),
            ("resourceVersion=13", Ok((14, 4, None))),
            (
                "resourceVersion=13&resourceVersionMatch=NotOlderThan",
                Ok((14, 4, None)),
            ),
            (
                "resourceVersion=13&resourceVersionMatch=Exact",
                Ok((13, 3, None)),
            ),
            ("resourceVersion=13&limit=2", Ok((13, 2, Some(1)))),
            ("resourceVersion=9&resourceVersionMatch=Exact", Err(410)),
            ("resourceVersion=15", Err(504)),
            ("resourceVersion=15&resourceVersionMatch=Exact", Err(504)),
            ("limit=3", Ok((14, 3, Some(1)))),
            ("limit=4", Ok((14, 4, None))),
            (
                "limit=1&fieldSelector=metadata.namespace%3Dn1",
                Ok((14, 1, None)),
            ),
        ] {
            // embedded 28
            assert_eq!(sizes(&query.replace("%3D", "=")), expected, "{query}");
        }
    }

    #[test]
    fn a_token_that_is_too_old_comes_with_another() {
        let mut cache = Cache::new(0);
        cache.replace(pods(&[0, 3, 6]));
        let token = ask(&cache, "limit=2").unwrap().token.unwrap();
        for turn in 0..1002_u32 {
            let more = (turn % 2 == 0).then_some(1);
            let names: Vec<u8> = [0, 3, 6].into_iter().chain(more).collect();
            cache.replace(pods(&names));
        }
        let expired = ask(&cache, &format!("limit=2&continue={token}")).unwrap_err();
        // embedded 28
        assert_eq!((expired.code, expired.reason), (410, "Expired"));
        let token = expired.token.clone().unwrap();
        assert_eq!(expired.to_value()["metadata"]["continue"], token.as_str());
        let rest = ask(&cache, &format!("continue={token}")).unwrap();
        assert_eq!((rest.objects.len(), rest.revision), (1, cache.revision()));
    }

    proptest! {
        /// Pages together are the list of the first one's revision, whatever happens between them.
        #[test]
        fn pages_are_one_list(
            first in prop::collection::btree_set(any::<u8>(), 0..30),
            between in prop::collection::vec(prop::collection::btree_set(any::<u8>(), 0..6), 0..30),
            limit in 1..8_usize,
        ) {
            let mut cache = Cache::new(5);
            cache.replace(pods(&first.iter().copied().collect::<Vec<_>>()));
            let whole = ask(&cache, "").unwrap();
            let mut seen = Vec::new();
            let mut query = format!("limit={limit}");
            let mut between = between.into_iter();
            loop {
                let page = ask(&cache, &query).unwrap();
                prop_assert_eq!(page.revision, whole.revision);
                prop_assert!(page.objects.len() <= limit);
                seen.extend(page.objects);
                prop_assert_eq!(page.remaining.unwrap_or(0), whole.objects.len() - seen.len());
                let Some(token) = page.token else { break };
                query = format!("limit={limit}&continue={token}");
                if let Some(names) = between.next() {
                    cache.replace(pods(&names.into_iter().collect::<Vec<_>>()));
                }
            }
            // embedded 28
            prop_assert_eq!(seen, whole.objects);
        }
    }
}
