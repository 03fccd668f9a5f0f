//! The older text form of metrics.

use std::fmt::Write as _;

/// Converts `OpenMetrics` text to Prometheus' older text format (0.0.4), which Kubernetes' own parsers
/// read. In that format a counter's family has the name of its samples, and there are no units, no
/// infos and no end marker.
pub fn prometheus_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    // Of a family the description comes first: it waits for the type, which decides on the name.
    let mut described: Option<(&str, &str)> = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            described = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (family, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" | "stateset" | "gaugehistogram" => ("", "untyped"),
                _ => ("", kind),
            };
            if let Some((_, words)) = described.take().filter(|(name, _)| *name == family) {
                // Writing to a String can't fail.
                let _ = writeln!(text, "# HELP {family}{suffix} {words}");
            }
            let _ = writeln!(text, "# TYPE {family}{suffix} {kind}");
        } else if !line.starts_with('#') && !line.is_empty() {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_named_as_their_samples() {
        let open = "# HELP up Whether it is\n# TYPE up gauge\nup 1\n\
            # HELP took_seconds How long it took\n# TYPE took_seconds histogram\n# UNIT took_seconds seconds\n\
            took_seconds_sum 0.5\ntook_seconds_count 1\ntook_seconds_bucket{le=\"+Inf\"} 1\n\
            # HELP asked How often\n# TYPE asked counter\nasked_total{by=\"# TYPE a b\"} 2\n\
            # HELP build The program\n# TYPE build info\nbuild_info{version=\"1\"} 1\n# EOF\n";
        // node-api 12
        assert_eq!(
            prometheus_text(open),
            "# HELP up Whether it is\n# TYPE up gauge\nup 1\n\
            # HELP took_seconds How long it took\n# TYPE took_seconds histogram\n\
            took_seconds_sum 0.5\ntook_seconds_count 1\ntook_seconds_bucket{le=\"+Inf\"} 1\n\
            # HELP asked_total How often\n# TYPE asked_total counter\nasked_total{by=\"# TYPE a b\"} 2\n\
            # HELP build_info The program\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n"
        );
        assert_eq!(prometheus_text(""), "");
    }
}
