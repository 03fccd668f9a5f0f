//! `mirrorlet top`: the CPU and memory that pods use.

use std::cmp::Reverse;
use std::io::{self, IsTerminal};
use std::path::Path;

use super::status::CLEAR;
use super::table::{self, Cell};
use super::{Failure, Outcome, client, print, print_document, print_one, status};
use crate::config::args::{DocumentOutput, TopArgs, TopOrder};
use mirrorlet_core::api::report::{PodReport, PodUsage, StatusReport, TopReport, UsageReport};
use mirrorlet_core::small::SmallSort;

/// Prints the usage once, or every two seconds.
pub async fn top(args: &TopArgs, root: &Path) -> Outcome {
    let is_selected = !args.pods.is_empty() || args.selector.is_some();
    if !args.watch {
        let body = client::get(root, "/v1/top").await?.whole().await?;
        let mut report: TopReport = client::parse(&body)?;
        if is_selected {
            select(&mut report, args, &status::fetch(root, false).await?)?;
        }
        sort(&mut report, args.sort_by);
        return print_document(args.output, &report, |report| {
            render(report, args.containers)
        });
    }
    let mut reports = client::Lines::<TopReport>::watch(root, "/v1/top?watch=true").await?;
    let redraw = io::stdout().is_terminal() && args.output == DocumentOutput::Text;
    loop {
        let mut report = reports.next().await?;
        if is_selected {
            select(&mut report, args, &status::fetch(root, false).await?)?;
        }
        sort(&mut report, args.sort_by);
        match args.output {
            DocumentOutput::Text => {
                let clear = if redraw { CLEAR } else { "" };
                print(&format!("{clear}{}", render(&report, args.containers)))?;
            }
            output => print_one(output, &report)?,
        }
    }
}

/// Keeps the requested pods.
fn select(report: &mut TopReport, args: &TopArgs, known: &StatusReport) -> Result<(), Failure> {
    let mut pods = status::named(known, &args.pods, args.watch)?;
    if let Some(selector) = &args.selector {
        let has_labels = |pod: &&PodReport| selector.matches(&pod.labels);
        pods.extend(known.pods.iter().filter(has_labels).cloned());
    }
    report.pods.retain(|usage| {
        pods.iter()
            .any(|pod| pod.name == usage.name && pod.namespace == usage.namespace)
    });
    Ok(())
}

fn sort(report: &mut TopReport, order: TopOrder) {
    match order {
        TopOrder::Name => {}
        TopOrder::Cpu => report
            .pods
            .small_sort_by_key(|pod| Reverse(pod.usage.cpu_nanos)),
        TopOrder::Memory => report
            .pods
            .small_sort_by_key(|pod| Reverse(pod.usage.memory_bytes)),
    }
}

fn render(report: &TopReport, containers: bool) -> String {
    let titles = |first| {
        table::titles([
            first,
            "CPU",
            "CPU%",
            "CPU LIMIT",
            "MEMORY",
            "MEMORY%",
            "MEMORY LIMIT",
        ])
    };
    let mut rows = vec![
        titles("NODE"),
        row(&report.node, &report.node_usage),
        Vec::new(),
        titles("POD"),
    ];
    for PodUsage {
        namespace,
        name,
        usage,
        containers: parts,
    } in &report.pods
    {
        rows.push(row(&format!("{namespace}/{name}"), usage));
        for container in parts.iter().filter(|_| containers) {
            rows.push(row(&format!("  {}", container.name), &container.usage));
        }
    }
    if report.pods.is_empty() {
        rows.truncate(2);
        return table::render(&rows) + "\nNo pods.\n";
    }
    table::render(&rows)
}

fn row(name: &str, usage: &UsageReport) -> Vec<Cell> {
    let UsageReport {
        cpu_nanos: cpu,
        cpu_limit_nanos: cpu_limit,
        memory_bytes: memory,
        memory_limit_bytes: memory_limit,
    } = *usage;
    let or_dash = |text: Option<String>| Cell::from(text.unwrap_or_else(|| "-".to_owned()));
    vec![
        // Cells have no spaces at their ends.
        Cell::indented(name),
        or_dash(cpu.map(millicores)),
        or_dash(percent(cpu, cpu_limit)),
        or_dash(cpu_limit.map(millicores)),
        or_dash(memory.map(mebibytes)),
        or_dash(percent(memory, memory_limit)),
        or_dash(memory_limit.map(mebibytes)),
    ]
}

/// As `kubectl top` has it.
fn millicores(nanos: u64) -> String {
    format!("{}m", nanos.div_ceil(1_000_000))
}

/// As `kubectl top` has it.
fn mebibytes(bytes: u64) -> String {
    format!("{}Mi", bytes >> 20)
}

fn percent(part: Option<u64>, whole: Option<u64>) -> Option<String> {
    let percent = (part?.saturating_mul(100)).checked_div(whole?)?;
    Some(format!("{percent}%"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirrorlet_core::api::report::ContainerUsage;

    fn usage(cpu: Option<u64>, memory: u64, limits: Option<(u64, u64)>) -> UsageReport {
        UsageReport {
            cpu_nanos: cpu,
            cpu_limit_nanos: limits.map(|(cpu, _)| cpu),
            memory_bytes: Some(memory << 20),
            memory_limit_bytes: limits.map(|(_, memory)| memory << 20),
        }
    }

    fn report() -> TopReport {
        let pod = |name: &str, usage: UsageReport| PodUsage {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            usage,
            containers: vec![ContainerUsage {
                name: "main".to_owned(),
                usage,
            }],
        };
        TopReport {
            node: "box".to_owned(),
            node_usage: usage(Some(1_234_567_890), 3000, Some((2_000_000_000, 24_000))),
            pods: vec![
                pod("cache-box", usage(None, 70, None)),
                pod(
                    "web-box",
                    usage(Some(2_000_001), 12, Some((500_000_000, 64))),
                ),
            ],
        }
    }

    #[test]
    fn usage_is_a_table() {
        let plain = |text: String| anstream::adapter::strip_str(&text).to_string();
        insta::assert_snapshot!(plain(render(&report(), true)));
        let none = TopReport {
            pods: Vec::new(),
            ..report()
        };
        assert!(plain(render(&none, false)).ends_with("\n\nNo pods.\n"));
    }

    #[test]
    fn pods_are_sorted_by_what_they_use() {
        let first = |order| {
            let mut report = report();
            sort(&mut report, order);
            report.pods.swap_remove(0).name
        };
        assert_eq!(first(TopOrder::Name), "cache-box");
        assert_eq!(first(TopOrder::Cpu), "web-box");
        assert_eq!(first(TopOrder::Memory), "cache-box");
    }
}
