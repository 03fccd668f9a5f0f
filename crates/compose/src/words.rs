//! Values that are written as words: commands, durations, sizes.

use std::time::Duration;

/// Splits a command as a shell would, without expanding anything; none if a quote isn't closed.
///
/// Upstream: `ShellCommand` of compose-go splits so (`mattn/go-shellwords`).
pub(crate) fn split(command: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some('"') | None, '\\') => word.get_or_insert_default().push(chars.next()?),
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// Reads a duration, `1m30s` or `500ms`; a number alone is seconds.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let mut total = 0.0_f64;
    let mut rest = text;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let value: f64 = rest[..number].parse().ok()?;
        let unit_end = rest[number..]
            .find(|c: char| c.is_ascii_digit())
            .map_or(rest.len(), |end| number + end);
        let seconds = match &rest[number..unit_end] {
            "w" => 604_800.0,
            "d" => 86_400.0,
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += value * seconds;
        rest = &rest[unit_end..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(total).ok())?
}

/// Reads a duration as whole seconds, rounded up.
pub(crate) fn seconds(text: &str) -> Option<i64> {
    let duration = duration(text)?;
    let whole = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i64::try_from(whole).ok()
}

/// Reads a size, `512m` or `1.5gb`, as bytes. Units count by 1024.
pub(crate) fn bytes(text: &str) -> Option<i64> {
    let text = text.trim().to_ascii_lowercase();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let factor = match text[end..].trim() {
        "" | "b" => 1.0,
        "k" | "kb" | "kib" => 1024.0,
        "m" | "mb" | "mib" => 1024.0 * 1024.0,
        "g" | "gb" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tb" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    #[expect(clippy::cast_possible_truncation, reason = "the bound is checked")]
    (number * factor < 9e15).then_some((number * factor) as i64)
}

/// A size as a quantity: `512Mi` where it is a whole number of units.
pub(crate) fn quantity(bytes: i64) -> String {
    let units = [(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    let unit = units
        .into_iter()
        .find(|(unit, _)| bytes > 0 && bytes % unit == 0);
    unit.map_or_else(
        || bytes.to_string(),
        |(unit, name)| format!("{}{name}", bytes / unit),
    )
}

/// A number of CPUs in thousandths.
pub(crate) fn milli(number: f64) -> Option<i64> {
    if !(0.0..1e6).contains(&number) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the bound is checked")]
    Some((number * 1000.0).round() as i64)
}

/// Thousandths of a CPU as a quantity: `500m`, `2`.
pub(crate) fn cpus(milli: i64) -> String {
    if milli % 1000 == 0 {
        (milli / 1000).to_string()
    } else {
        format!("{milli}m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_durations_and_sizes_are_read() {
        for (command, words) in [
            ("a b  c", &["a", "b", "c"][..]),
            (
                "sh -c 'echo \"$HOME\" \\x'",
                &["sh", "-c", "echo \"$HOME\" \\x"],
            ),
            ("a \"b \\\" c\"d \\ e ''", &["a", "b \" cd", " e", ""]),
            ("", &[]),
        ] {
            assert_eq!(split(command).unwrap(), words, "{command}");
        }
        assert_eq!(split("a 'b"), None);
        for (text, found) in [
            ("1m30s", Some(90)),
            ("500ms", Some(1)),
            ("2h", Some(7200)),
            ("1.5s", Some(2)),
            ("10", Some(10)),
            ("", None),
            ("5x", None),
        ] {
            assert_eq!(seconds(text), found, "{text}");
        }
        for (text, found) in [
            ("512m", Some("512Mi")),
            ("1.5gb", Some("1536Mi")),
            ("64M", Some("64Mi")),
            ("1000", Some("1000")),
            ("x", None),
        ] {
            assert_eq!(bytes(text).map(quantity).as_deref(), found, "{text}");
        }
        assert_eq!(milli(0.5).map(cpus).as_deref(), Some("500m"));
        assert_eq!(milli(2.0).map(cpus).as_deref(), Some("2"));
        assert_eq!(milli(-1.0), None);
    }
}
