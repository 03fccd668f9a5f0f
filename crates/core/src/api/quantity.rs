//! Kubernetes quantities (`500m`, `64Mi`, `1e3`), exact to the nano unit.
//!
//! Upstream: `k8s.io/apimachinery/pkg/api/resource/quantity.go`.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

const NANO: i128 = 1_000_000_000;

/// A parsed quantity, in nano units: exact for everything that Kubernetes accepts, up to its own 63-bit
/// limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Quantity {
    nano: i128,
}

/// A text that isn't a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "quantities must be a number with an optional suffix: n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or a decimal exponent"
)]
pub struct InvalidQuantity;

impl Quantity {
    /// A whole number of units.
    pub fn of(units: i64) -> Self {
        Self {
            nano: i128::from(units) * NANO,
        }
    }

    /// Returns a quantity in thousandths of a unit, as used for CPU.
    pub fn of_milli(thousandths: u64) -> Self {
        Self {
            nano: i128::from(thousandths) * (NANO / 1000),
        }
    }

    /// The value in whole units, rounded up.
    pub fn ceil(self) -> i64 {
        self.ceil_to(NANO)
    }

    /// The value in thousandths, rounded up, as used for CPU.
    pub fn milli_ceil(self) -> i64 {
        self.ceil_to(NANO / 1000)
    }

    /// This divided by `divisor`, rounded up; 0 for a divisor of 0.
    pub fn div_ceil(self, divisor: Self) -> i64 {
        if divisor.nano == 0 {
            0
        } else {
            self.ceil_to(divisor.nano)
        }
    }

    /// Whether the value is 0.
    pub fn is_zero(self) -> bool {
        self.nano == 0
    }

    /// Whether the value is below 0.
    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    /// The sum of both, at most the largest representable value.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self {
            nano: self.nano.saturating_add(other.nano),
        }
    }

    fn ceil_to(self, unit: i128) -> i64 {
        let quotient = self.nano.div_euclid(unit);
        let rounded = if self.nano.rem_euclid(unit) == 0 {
            quotient
        } else {
            quotient + 1
        };
        i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    }
}

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let digits_end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(digits_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(InvalidQuantity);
        }
        let (multiplier, exponent) = scale(suffix)?;
        let nano = magnitude(whole, fraction, multiplier, exponent);
        Ok(Self {
            nano: if negative { -nano } else { nano },
        })
    }
}

/// The multiplier of a suffix: a binary factor and a power of ten.
fn scale(suffix: &str) -> Result<(i128, i32), InvalidQuantity> {
    Ok(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        exponent if exponent.starts_with(['e', 'E']) => {
            let power: i32 = exponent[1..].parse().map_err(|_| InvalidQuantity)?;
            (1, power)
        }
        _ => return Err(InvalidQuantity),
    })
}

/// `whole.fraction × multiplier × 10^exponent` in nano units, rounded up and saturating.
fn magnitude(whole: &str, fraction: &str, multiplier: i128, exponent: i32) -> i128 {
    const DIGITS_MAX: usize = 36;
    let mut digits = String::with_capacity(whole.len() + fraction.len());
    digits.push_str(whole.trim_start_matches('0'));
    digits.push_str(fraction);
    let kept = digits.len().min(DIGITS_MAX);
    let value: i128 = digits[..kept].parse().unwrap_or(0);
    let dropped = i32::try_from(digits.len() - kept).unwrap_or(i32::MAX);
    let fraction_len = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let power = exponent
        .saturating_add(9)
        .saturating_add(dropped)
        .saturating_sub(fraction_len);
    let scaled = value.saturating_mul(multiplier);
    match u32::try_from(power) {
        Ok(power) => 10_i128.checked_pow(power).map_or_else(
            || if scaled == 0 { 0 } else { i128::MAX },
            |factor| scaled.saturating_mul(factor),
        ),
        Err(_) => 10_i128.checked_pow(power.unsigned_abs()).map_or_else(
            || i128::from(scaled != 0),
            |divisor| scaled / divisor + i128::from(scaled % divisor != 0),
        ),
    }
}

impl TryFrom<&ApiQuantity> for Quantity {
    type Error = InvalidQuantity;

    fn try_from(quantity: &ApiQuantity) -> Result<Self, Self::Error> {
        quantity.0.parse()
    }
}

/// Whole units rounded up; for messages.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ceil())
    }
}

/// Formats thousandths of a unit as the API does: without a suffix if they are whole units.
pub fn milli_text(milli: u64) -> String {
    if milli.is_multiple_of(1000) {
        (milli / 1000).to_string()
    } else {
        format!("{milli}m")
    }
}

/// Formats a number with the largest binary suffix that leaves a whole number.
pub fn binary_text(units: u64) -> String {
    [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)]
        .into_iter()
        .find(|(_, shift)| units > 0 && units.trailing_zeros() >= *shift)
        .map_or_else(
            || units.to_string(),
            |(suffix, shift)| format!("{}{suffix}", units >> shift),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_scale_as_in_kubernetes() {
        for (text, milli) in [
            ("0", 0),
            ("1", 1000),
            ("500m", 500),
            ("1.5", 1500),
            (".5", 500),
            ("1.", 1000),
            ("1k", 1_000_000),
            ("1Ki", 1_024_000),
            ("1e3", 1_000_000),
            ("1E3", 1_000_000),
            ("12E", i64::MAX),
            ("100n", 1),
            ("-1", -1000),
            ("1Gi", 1_073_741_824_000),
        ] {
            assert_eq!(
                text.parse::<Quantity>().unwrap().milli_ceil(),
                milli,
                "{text}"
            );
        }
        assert_eq!("1Ei".parse::<Quantity>().unwrap().ceil(), 1 << 60);
        assert_eq!("12E".parse::<Quantity>().unwrap().ceil(), i64::MAX);
        assert_eq!(
            "9223372036854775807".parse::<Quantity>().unwrap().ceil(),
            i64::MAX
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in [
            "", "garbage", "1.2.3", "1 Mi", "Mi", "1mi", "--1", "0x10", "1e", ".",
        ] {
            assert!(bad.parse::<Quantity>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn division_rounds_up() {
        let memory: Quantity = "100Mi".parse().unwrap();
        assert_eq!(memory.div_ceil("1Mi".parse().unwrap()), 100);
        assert_eq!(memory.div_ceil("3Mi".parse().unwrap()), 34);
        assert_eq!(
            "250m"
                .parse::<Quantity>()
                .unwrap()
                .div_ceil(Quantity::of(1)),
            1
        );
    }
}
