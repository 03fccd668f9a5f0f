//! Settings of eviction: thresholds, their grace periods, and how much to reclaim.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::kinds::{Fault, Kind, NONE};
use super::node::pairs;
use super::{Config, duration};
use mirrorlet_core::eviction::{Amount, EvictionPolicy, Signal, Threshold};

/// Thresholds: `memory.available<100Mi` or `nodefs.available<10%`, and `none` for none.
pub fn thresholds() -> Kind<Vec<(Signal, Amount)>> {
    by_signal("THRESHOLD", '<', amount, Amount::to_string)
}

/// Amounts by signal: `memory.available=100Mi`.
pub fn amounts() -> Kind<Vec<(Signal, Amount)>> {
    by_signal("SIGNAL=AMOUNT", '=', amount, Amount::to_string)
}

fn amount(text: &str) -> Result<Amount, Fault> {
    match Amount::parse(text)? {
        Amount::Units(0) => Err(format!("{text:?} is not positive")),
        amount @ (Amount::Units(_) | Amount::Share(_)) => Ok(amount),
    }
}

/// Grace periods by signal: `memory.available=1m30s`.
pub fn periods() -> Kind<Vec<(Signal, Duration)>> {
    let parse = |text: &str| duration::parse(text).map_err(|e| format!("{text:?} is {e}"));
    by_signal("SIGNAL=DURATION", '=', parse, |value| {
        duration::render(*value)
    })
}

fn by_signal<T: Clone + 'static>(
    value: &'static str,
    separator: char,
    parse: impl Fn(&str) -> Result<T, Fault> + 'static,
    show: impl Fn(&T) -> String + 'static,
) -> Kind<Vec<(Signal, T)>> {
    let names = Signal::ALL.map(Signal::as_str);
    let pattern = names.join("|").replace('.', r"\.");
    let pattern = format!("^({NONE}$|({pattern})[<=])");
    let schema = json!({"type": "string", "pattern": pattern});
    let parse = move |text: &str, _: &Path| {
        if text == NONE {
            return Ok(None);
        }
        let (signal, value) = text
            .split_once(['<', '='])
            .ok_or_else(|| format!("{text:?} is not SIGNAL{separator}VALUE"))?;
        Ok(Some((Signal::parse(signal.trim())?, parse(value.trim())?)))
    };
    let show = move |value: &Option<(Signal, T)>| match value {
        Some((signal, value)) => format!("{}{separator}{}", signal.as_str(), show(value)),
        None => NONE.to_owned(),
    };
    let mut kind = pairs(Kind::one(value, schema, parse, show));
    kind.schema["anyOf"][1]["propertyNames"] = json!({"enum": names});
    kind.map(
        |values| Ok(values.into_iter().flatten().collect()),
        |values: &Vec<(Signal, T)>| match values.as_slice() {
            [] => vec![None],
            values => values.iter().cloned().map(Some).collect(),
        },
    )
}

/// The policy in a configuration.
///
/// Upstream: `ParseThresholdConfig`.
pub fn policy(config: &Config) -> EvictionPolicy {
    let find = |signal: Signal| {
        let mut all = config.eviction_minimum_reclaim.iter();
        all.find(|(of, _)| *of == signal).map(|(_, amount)| *amount)
    };
    let threshold = |(signal, value): &(Signal, Amount), grace| Threshold {
        signal: *signal,
        value: *value,
        grace,
        min_reclaim: find(*signal),
    };
    let hard = config.eviction_hard.iter();
    let hard = hard.map(|pair| threshold(pair, Duration::ZERO));
    let soft = config.eviction_soft.iter().map(|pair| {
        let mut graces = config.eviction_soft_grace_period.iter();
        let grace = graces.find(|(signal, _)| *signal == pair.0);
        threshold(pair, grace.map_or(Duration::ZERO, |(_, grace)| *grace))
    });
    EvictionPolicy {
        thresholds: hard.chain(soft).filter(|t| !t.value.is_trivial()).collect(),
        max_pod_grace: Duration::from_secs(config.eviction_max_pod_grace_period.into()),
        transition: config.eviction_pressure_transition_period,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{Ambient, ConfigFaults, Key, Setting, resolve};
    use super::*;

    fn resolved(flags: &[(Key, &str)]) -> Result<Config, ConfigFaults> {
        let setting = |(key, text): &(Key, &str)| (*key, Setting(vec![(*text).to_owned()]));
        let flags: BTreeMap<Key, Setting> = flags.iter().map(setting).collect();
        resolve(&flags, None, &Ambient::default()).map(|resolved| resolved.config)
    }

    #[test]
    fn thresholds_are_read_as_a_kubelet_reads_them() {
        let all = |flags: &[(Key, &str)]| {
            let policy = policy(&resolved(flags).unwrap());
            let show = |t: &Threshold| {
                let (name, grace) = (t.signal.as_str(), duration::render(t.grace));
                let more = t.min_reclaim.map(|more| format!("+{more}"));
                format!("{name}<{}{} {grace}", t.value, more.unwrap_or_default())
            };
            policy.thresholds.iter().map(show).collect::<Vec<_>>()
        };
        // eviction 1
        assert_eq!(
            all(&[]),
            [
                "memory.available<100Mi 0s",
                "nodefs.available<10% 0s",
                "nodefs.inodesFree<5% 0s",
                "imagefs.available<15% 0s",
                "imagefs.inodesFree<5% 0s",
            ]
        );
        let flags = [
            (Key::EvictionHard, "pid.available<100, memory.available<0%"),
            (Key::EvictionSoft, "memory.available<1Gi"),
            (Key::EvictionSoftGracePeriod, "memory.available=1m30s"),
            (Key::EvictionMinimumReclaim, "memory.available=200Mi"),
        ];
        // eviction 1
        assert_eq!(
            all(&flags),
            ["pid.available<100 0s", "memory.available<1Gi+200Mi 1m30s"]
        );
        assert_eq!(all(&[(Key::EvictionHard, "none")]), [""; 0]);
        for (key, bad) in [
            (Key::EvictionHard, "memory.free<1Mi"),
            (Key::EvictionHard, "memory.available"),
            (Key::EvictionHard, "memory.available<0"),
            (Key::EvictionHard, "memory.available<101%"),
            (Key::EvictionSoft, "memory.available<1Gi"),
            (Key::EvictionSoftGracePeriod, "memory.available=soon"),
        ] {
            assert!(resolved(&[(key, bad)]).is_err(), "{bad}");
        }
    }
}
