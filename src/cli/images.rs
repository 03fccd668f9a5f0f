//! `mirrorlet images`: the images on the Engine.

use std::path::Path;

use super::status::render::megabytes;
use super::table::{self, Cell};
use super::{Outcome, client, print_document};
use crate::config::args::ImagesArgs;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::{ImageReport, ImagesReport};
use mirrorlet_core::clock::age;

/// Digits of an id that are shown, as `docker images` has them.
const ID_DIGITS: usize = 12;

/// Lists images.
pub async fn images(args: &ImagesArgs, root: &Path) -> Outcome {
    let body = client::get(root, "/v1/images").await?.whole().await?;
    let mut report: ImagesReport = client::parse(&body)?;
    if args.unused {
        report.images.retain(|image| image.users().next().is_none());
    }
    print_document(args.output, &report, |report| {
        render(&report.images, Timestamp::now())
    })
}

fn render(images: &[ImageReport], now: Timestamp) -> String {
    if images.is_empty() {
        return "no images\n".to_owned();
    }
    let row = |image: &ImageReport| {
        let id = image.id.strip_prefix("sha256:").unwrap_or(&image.id);
        let id: String = id.chars().take(ID_DIGITS).collect();
        let pulled = image.pulled_at.map(|at| age(at, now) + " ago");
        let names = image.names.join(", ");
        let names = if names.is_empty() { "-" } else { &names };
        vec![
            Cell::from(names),
            id.into(),
            megabytes(image.size_bytes).into(),
            pulled.as_deref().unwrap_or("-").into(),
            image.users().collect::<Vec<_>>().join(", ").into(),
        ]
    };
    let titles = ["IMAGE", "ID", "SIZE", "PULLED", "USED BY"];
    table::titled(titles, images.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_a_table() {
        let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).unwrap();
        let image = |names: &[&str], pulled, pods: &[&str], workloads: &[&str]| ImageReport {
            id: format!("sha256:{}", "0123456789abcdef".repeat(4)),
            names: names.iter().copied().map(str::to_owned).collect(),
            size_bytes: 7_654_321,
            pulled_at: pulled,
            pods: pods.iter().copied().map(str::to_owned).collect(),
            workloads: workloads.iter().copied().map(str::to_owned).collect(),
        };
        let images = [
            image(
                &["nginx:1", "nginx:1.27"],
                Some(at(0)),
                &["default/web-box", "shop/web-box"],
                &["cronjob/default/dump"],
            ),
            image(&[], None, &[], &["deployment/default/off"]),
            image(&[], None, &[], &[]),
        ];
        let table = render(&images, at(3600));
        insta::assert_snapshot!(anstream::adapter::strip_str(&table).to_string());
        assert_eq!(render(&[], at(0)), "no images\n");
    }
}
