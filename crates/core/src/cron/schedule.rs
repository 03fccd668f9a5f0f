//! The schedule of a CronJob: five fields, in a time zone.
//!
//! The fields are parsed here, as upstream parses them; a library computes the matching times, across
//! months, leap years and clock changes.
//!
//! Upstream: `ParseStandard` of `github.com/robfig/cron/v3`.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Zoned;
use jiff::tz::TimeZone;

use crate::api::Timestamp;

/// Words for whole schedules.
const MACROS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// One of the five fields.
struct Field {
    name: &'static str,
    first: u32,
    last: u32,
    /// Names of its values, from the first one.
    words: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field {
        name: "minute",
        first: 0,
        last: 59,
        words: &[],
    },
    Field {
        name: "hour",
        first: 0,
        last: 23,
        words: &[],
    },
    Field {
        name: "day of the month",
        first: 1,
        last: 31,
        words: &[],
    },
    Field {
        name: "month",
        first: 1,
        last: 12,
        words: &MONTHS,
    },
    Field {
        name: "day of the week",
        first: 0,
        last: 6,
        words: &DAYS,
    },
];

/// Why a schedule can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSchedule {
    /// It has another form.
    #[error(
        "must have five fields (minute, hour, day of the month, month, day of the week), or be a macro like @daily"
    )]
    Form,
    /// It is, or begins with, a word that is not supported.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// A field is wrong.
    #[error("the {0} is not valid")]
    Field(&'static str),
    /// It never comes.
    #[error("no date ever matches the schedule")]
    Never,
}

/// The time zone with an IANA name, from the database in this program.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    // As upstream, whose "Local" is another machine's.
    if name.is_empty() || name.eq_ignore_ascii_case("local") {
        return None;
    }
    TimeZone::get(name).ok()
}

/// When something is due.
#[derive(Debug, Clone)]
pub struct Schedule {
    cron: Cron,
    zone: TimeZone,
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.cron == other.cron && self.zone == other.zone
    }
}

impl Schedule {
    /// Reads a schedule.
    ///
    /// # Errors
    /// It isn't one.
    pub fn parse(text: &str, zone: TimeZone) -> Result<Self, NotSchedule> {
        if text.starts_with("TZ=") || text.starts_with("CRON_TZ=") {
            return Err(NotSchedule::Unsupported("a time zone in the schedule"));
        }
        let known = MACROS.iter().find(|(word, _)| *word == text);
        if known.is_none() && text.starts_with("@every") {
            return Err(NotSchedule::Unsupported("@every"));
        }
        let text = known.map_or(text, |(_, fields)| fields);
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        if fields.len() != FIELDS.len() {
            return Err(NotSchedule::Form);
        }
        let read = FIELDS
            .iter()
            .zip(fields)
            .map(|(field, text)| read(field, text).ok_or(NotSchedule::Field(field.name)));
        let read: Vec<String> = read.collect::<Result<_, _>>()?;
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        let cron = parser
            .parse(&read.join(" "))
            .map_err(|_| NotSchedule::Form)?;
        let schedule = Self { cron, zone };
        match schedule.next(Timestamp::UNIX_EPOCH) {
            Some(_) => Ok(schedule),
            None => Err(NotSchedule::Never),
        }
    }

    /// The first time after a moment.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let from = self.zoned(after);
        let next = self.cron.find_next_occurrence(&from, false);
        // The library finds nothing where a time zone has left out the day of the next time.
        let next = next.or_else(|error| {
            let changes = self.zone.following(after).next();
            let change = changes.ok_or(error)?.timestamp();
            self.cron.find_next_occurrence(&self.zoned(change), true)
        });
        Some(next.ok()?.timestamp())
    }

    /// The last time that isn't after a moment.
    pub fn previous(&self, until: Timestamp) -> Option<Timestamp> {
        let until = self.zoned(until);
        let previous = self.cron.find_previous_occurrence(&until, true).ok()?;
        Some(previous.timestamp())
    }

    /// In whole seconds: schedules know no less.
    fn zoned(&self, at: Timestamp) -> Zoned {
        let at = Timestamp::from_second(at.as_second()).unwrap_or(at);
        at.to_zoned(self.zone.clone())
    }
}

/// Converts a field to the library's syntax: unchanged if it means the same there, otherwise as a list.
/// `*` matters because it decides whether both the day of the month and the day of the week must match.
fn read(field: &Field, text: &str) -> Option<String> {
    let mut values = 0_u64;
    let mut is_star = false;
    for part in text.split(',') {
        let (of_part, star) = part_of(field, part)?;
        values |= of_part;
        is_star |= star;
    }
    if is_star {
        return Some("*".to_owned());
    }
    // The library distinguishes "every so often" from "at a time" by the star of minute and hour.
    if let Some(step) = text.strip_prefix("*/")
        && field.last > 12
        && field.first == 0
    {
        return Some(format!("*/{step}"));
    }
    let values = (field.first..=field.last).filter(|value| values & (1 << value) != 0);
    let values: Vec<String> = values.map(|value| value.to_string()).collect();
    Some(values.join(","))
}

/// The values of `*`, `N`, `N-M`, and each of these with a step, as bits, and whether it is a star. A
/// star with a step of 1 is one, too.
fn part_of(field: &Field, text: &str) -> Option<(u64, bool)> {
    let (range, step) = match text.split_once('/') {
        Some((range, step)) => (range, Some(number(step)?)),
        None => (text, None),
    };
    let is_star = range == "*" || range == "?";
    let (first, last) = if is_star {
        (field.first, field.last)
    } else if let Some((first, last)) = range.split_once('-') {
        (value(field, first)?, value(field, last)?)
    } else {
        let first = value(field, range)?;
        // `N/step` is from there on.
        (first, if step.is_some() { field.last } else { first })
    };
    let step = step.unwrap_or(1);
    if first < field.first || last > field.last || first > last || step == 0 {
        return None;
    }
    let values = (first..=last).step_by(usize::try_from(step).ok()?);
    let bits = values.fold(0, |bits, value| bits | 1 << value);
    Some((bits, is_star && step == 1))
}

fn value(field: &Field, text: &str) -> Option<u32> {
    let lower = text.to_ascii_lowercase();
    let word = field.words.iter().position(|word| *word == lower);
    match word {
        Some(place) => Some(field.first + u32::try_from(place).ok()?),
        None => number(text),
    }
}

fn number(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}
