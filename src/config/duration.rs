//! Durations as people write them: `20s`, `1m30s`, `25ms`.

use std::time::Duration;

/// Units a duration may be written in, largest first, in milliseconds.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// The input of [`parse`] as a pattern for schemas.
pub const PATTERN: &str = "^([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$";

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
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
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
