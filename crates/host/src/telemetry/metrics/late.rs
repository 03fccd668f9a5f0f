//! A gauge without a sample until it is set, so that it isn't served where it has no meaning.

use std::sync::{Arc, OnceLock};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};

/// A gauge that is served from its first value on. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct LateGauge(Arc<OnceLock<Gauge>>);

impl LateGauge {
    pub(super) fn set(&self, value: i64) {
        self.0.get_or_init(Gauge::default).set(value);
    }
}

impl EncodeMetric for LateGauge {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        match self.0.get() {
            Some(gauge) => gauge.encode(encoder),
            None => Ok(()),
        }
    }

    fn metric_type(&self) -> MetricType {
        <Gauge as TypedMetric>::TYPE
    }

    fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }
}
