//! Durations as users write them: `20s`, `1m30s`, `25ms`.

use std::time::Duration;

/// Units a duration may be written in, largest first, in milliseconds.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// A text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a duration: write numbers with the units h, m, s or ms, for example 20s or 1m30s")]
pub struct InvalidDuration;

/// Parses numbers with units, largest unit first, each at most once: `1m30s`.
///
/// # Errors
/// The text is empty, has a number without a unit, an unknown or repeated unit, or overflows.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let mut rest = text.trim();
    let mut units = UNITS.iter();
    let mut total_ms: u64 = 0;
    if rest.is_empty() {
        return Err(InvalidDuration);
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .ok_or(InvalidDuration)?;
        let number: u64 = rest[..digits].parse().map_err(|_| InvalidDuration)?;
        let unit_end = rest[digits..]
            .find(|c: char| c.is_ascii_digit())
            .map_or(rest.len(), |end| digits + end);
        let unit = &rest[digits..unit_end];
        let (_, factor) = units
            .by_ref()
            .find(|(name, _)| *name == unit)
            .ok_or(InvalidDuration)?;
        total_ms = number
            .checked_mul(*factor)
            .and_then(|ms| total_ms.checked_add(ms))
            .ok_or(InvalidDuration)?;
        rest = &rest[unit_end..];
    }
    Ok(Duration::from_millis(total_ms))
}

/// The shortest text that [`parse`] reads back as the same duration, in whole milliseconds.
pub fn render(duration: Duration) -> String {
    let mut rest = milliseconds(duration);
    let mut text = String::new();
    for (unit, factor) in UNITS {
        if rest >= factor {
            text.push_str(&(rest / factor).to_string());
            text.push_str(unit);
            rest %= factor;
        }
    }
    if text.is_empty() {
        text.push_str("0s");
    }
    text
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A pattern for schemas: the input of [`parse`], no number of which is longer than `to` by itself.
pub(super) fn pattern_up_to(to: Duration) -> String {
    let to = milliseconds(to);
    pattern(UNITS.map(|(_, factor)| to / factor))
}

/// A pattern for schemas: input of [`parse`] that is shorter than `from`, with each number at most that
/// of the longest such duration.
pub(super) fn pattern_below(from: Duration) -> String {
    let mut rest = milliseconds(from).saturating_sub(1);
    pattern(UNITS.map(|(_, factor)| {
        let number = rest / factor;
        rest %= factor;
        number
    }))
}

/// A pattern of durations with at most these numbers, by unit.
fn pattern(most: [u64; UNITS.len()]) -> String {
    let parts = UNITS.iter().zip(most);
    let parts = parts.map(|((unit, _), most)| format!("(0*({}){unit})?", up_to(most)));
    let parts: Vec<String> = parts.collect();
    format!("^{}$", parts.concat())
}

/// A pattern of the numbers up to `most`, without leading zeros; of a long one, only the count of digits is
/// limited.
fn up_to(most: u64) -> String {
    let digits = most.to_string();
    let last = digits.len() - 1;
    if last > 3 {
        return format!("[0-9]{{1,{}}}", digits.len());
    }
    let any = |count: usize| match count {
        0 => String::new(),
        1 => "[0-9]".to_owned(),
        _ => format!("[0-9]{{{count}}}"),
    };
    // Numbers with fewer digits, then those that have a lower digit at one place, the last of all an equal
    // one.
    let mut parts = match last {
        0 => Vec::new(),
        1 => vec![any(1)],
        _ => vec![format!("[0-9]{{1,{last}}}")],
    };
    for (place, digit) in digits.bytes().enumerate() {
        let highest = if place == last { digit } else { digit - 1 };
        let range = match highest {
            b'0' => "0".to_owned(),
            b'1'..=b'9' => format!("[0-{}]", char::from(highest)),
            _ => continue,
        };
        let rest = any(last - place);
        parts.push(format!("{}{range}{rest}", &digits[..place]));
    }
    parts.join("|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_numbers_with_units() {
        for (text, ms) in [
            ("20s", 20_000),
            ("1m30s", 90_000),
            ("25ms", 25),
            ("1h", 3_600_000),
            ("1h5ms", 3_600_005),
            ("0s", 0),
            ("90s", 90_000),
            (" 5m ", 300_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in [
            "",
            "20",
            "s",
            "1.5s",
            "-1s",
            "30s1m",
            "1s1s",
            "1d",
            "20 s",
            "1é",
            "99999999999999999h",
        ] {
            assert_eq!(parse(bad), Err(InvalidDuration), "{bad:?}");
        }
    }

    #[test]
    fn a_pattern_has_the_numbers_up_to_a_limit() {
        for (most, pattern) in [
            (0, "0"),
            (7, "[0-7]"),
            (50, "[0-9]|[0-4][0-9]|50"),
            (3600, "[0-9]{1,3}|[0-2][0-9]{3}|3[0-5][0-9]{2}|3600"),
            (86_400, "[0-9]{1,5}"),
        ] {
            assert_eq!(up_to(most), pattern);
        }
        for most in [0, 9, 10, 50, 99, 100, 999, 3600, 9999] {
            let pattern = regex::Regex::new(&format!("^({})$", up_to(most))).unwrap();
            for number in 0..=most + 1000 {
                let is_match = pattern.is_match(&number.to_string());
                assert_eq!(is_match, number <= most, "{number} of {most}");
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_rendered_is_read_back(ms in 0u64..1_000_000_000_000) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse(&render(duration)), Ok(duration));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = parse(&text);
        }
    }
}
