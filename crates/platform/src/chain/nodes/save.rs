//! Nodes that store telemetry and attributes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::Mutex;

use timeseries::{PointDestination, PointValue};

use super::NodeOutcome;
use crate::chain::host::{Host, NodeError, SaveOptions};
use crate::chain::message::{ChainMessage, MessageData, POST_ATTRIBUTES, POST_TELEMETRY, PatternFiller};
use crate::decode::{DecodeLimits, Telemetry, attributes};
use crate::ids::{EntityId, Uuid};
use crate::model::{Attribute, AttributeScope};

/// Cached intervals, and originators in all of them.
const INTERVALS_MAX: usize = 100;
const ORIGINATORS_MAX: usize = 1_000_000;

/// How often values are stored.
#[derive(Debug)]
pub struct SaveStrategy(SaveInterval);

#[derive(Debug)]
enum SaveInterval {
    Every,
    Never,
    Once {
        interval_ms: i64,
        seen: Mutex<SavedOriginators>,
    },
}

/// Originators per interval of the data's timestamp.
#[derive(Debug, Default)]
struct SavedOriginators {
    intervals: BTreeMap<i64, HashSet<Uuid>>,
    originators: usize,
}

impl SaveStrategy {
    pub fn every() -> SaveStrategy {
        SaveStrategy(SaveInterval::Every)
    }

    pub fn never() -> SaveStrategy {
        SaveStrategy(SaveInterval::Never)
    }

    pub fn once_in(seconds: u64) -> SaveStrategy {
        SaveStrategy(SaveInterval::Once {
            interval_ms: i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX),
            seen: Mutex::default(),
        })
    }

    fn is_due(&self, originator: EntityId, ts_ms: i64) -> bool {
        match &self.0 {
            SaveInterval::Every => true,
            SaveInterval::Never => false,
            SaveInterval::Once { interval_ms, seen } => {
                let mut seen = seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                seen.is_first(ts_ms.div_euclid(*interval_ms), originator.id)
            }
        }
    }
}

impl SavedOriginators {
    /// Whether this is the originator's first value in the interval. After eviction it counts as first again.
    fn is_first(&mut self, interval: i64, originator: Uuid) -> bool {
        let is_first = self.intervals.entry(interval).or_default().insert(originator);
        self.originators += usize::from(is_first);
        while self.intervals.len() > INTERVALS_MAX || self.originators > ORIGINATORS_MAX {
            let Some((_, oldest)) = self.intervals.pop_first() else {
                break;
            };
            self.originators -= oldest.len();
        }
        is_first
    }
}

#[derive(Debug)]
pub struct SaveTimeseriesNode {
    pub ttl_s: u64,
    pub uses_server_time: bool,
    pub history: SaveStrategy,
    /// `None` follows the history.
    pub latest: Option<SaveStrategy>,
    pub shown: SaveStrategy,
}

impl SaveTimeseriesNode {
    pub fn process<'a>(
        &self,
        message: Arc<ChainMessage<'a>>,
        host: &mut dyn Host,
    ) -> Result<NodeOutcome<'a>, NodeError> {
        if message.kind != POST_TELEMETRY {
            return Err(NodeError::new(format!("Unsupported msg type: {}", message.kind)));
        }
        let ts_ms = if self.uses_server_time {
            host.now_ms()
        } else {
            message.data_ts_ms()
        };
        let history = self.history.is_due(message.originator, ts_ms);
        let latest = self.latest.as_ref();
        let latest = latest.map_or(history, |latest| latest.is_due(message.originator, ts_ms));
        let saving = SaveOptions {
            storage: match (history, latest) {
                (true, true) => Some(PointDestination::HistoryAndLatest),
                (true, false) => Some(PointDestination::HistoryOnly),
                (false, true) => Some(PointDestination::LatestOnly),
                (false, false) => None,
            },
            is_shown: self.shown.is_due(message.originator, ts_ms),
            ttl_s: self.ttl_of(&message)?,
        };
        if saving.storage.is_none() && !saving.is_shown {
            return Ok(NodeOutcome::success(message));
        }
        match &message.data {
            MessageData::Values(values) => {
                if values.is_empty() {
                    return Err(NodeError::new("Msg body is empty: {}"));
                }
                host.save_timeseries(message.originator, ts_ms, values, saving)?;
            }
            MessageData::Json(json) => {
                let text = json.to_string();
                let telemetry = Telemetry::decode(text.as_bytes(), ts_ms, &DecodeLimits::default())
                    .map_err(|error| NodeError::new(error.to_string()))?;
                if telemetry.point_count() == 0 {
                    return Err(NodeError::new(format!("Msg body is empty: {text}")));
                }
                for (ts_ms, values) in telemetry.groups() {
                    host.save_timeseries(message.originator, ts_ms, values, saving)?;
                }
            }
        }
        Ok(NodeOutcome::success(message))
    }

    fn ttl_of(&self, message: &ChainMessage<'_>) -> Result<u64, NodeError> {
        match message.metadata.get("TTL").filter(|text| !text.is_empty()) {
            Some(text) => text
                .parse()
                .map_err(|_| NodeError::new(format!("TTL {text:?} is not a number of seconds"))),
            None => Ok(self.ttl_s),
        }
    }
}

#[derive(Debug)]
pub struct SaveAttributesNode {
    pub scope: AttributeScope,
    pub notifies_device: bool,
    pub only_changed: bool,
}

impl SaveAttributesNode {
    pub fn process<'a>(
        &self,
        message: Arc<ChainMessage<'a>>,
        host: &mut dyn Host,
    ) -> Result<NodeOutcome<'a>, NodeError> {
        if message.kind != POST_ATTRIBUTES {
            return Err(NodeError::new(format!("Unsupported msg type: {}", message.kind)));
        }
        let scope = match message.metadata.get("scope").filter(|text| !text.is_empty()) {
            Some(name) => AttributeScope::parse(name)
                .ok_or_else(|| NodeError::new(format!("{name:?} is not an attribute scope")))?,
            None => self.scope,
        };
        let mut values = values_of(&message, host.now_ms())?;
        if self.only_changed && !values.is_empty() {
            let keys: Vec<String> = values.iter().map(|attribute| attribute.key.clone()).collect();
            let known = host.attributes(message.originator, scope, &keys)?;
            let known: HashMap<&str, &PointValue> = known.iter().map(|known| (&*known.key, &known.value)).collect();
            values.retain(|new| known.get(&*new.key) != Some(&&new.value));
        }
        if !values.is_empty() {
            // Messages of devices have false. Messages of chains have no value, and notify the device.
            let notify = message.metadata.get("notifyDevice");
            let notifies = self.notifies_device || notify.is_none_or(|notify| notify.is_empty() || notify == "true");
            host.save_attributes(
                message.originator,
                scope,
                &values,
                notifies && scope == AttributeScope::SharedScope,
            )?;
        }
        Ok(NodeOutcome::success(message))
    }
}

fn values_of(message: &ChainMessage<'_>, now_ms: i64) -> Result<Vec<Attribute>, NodeError> {
    let text;
    let owned;
    let values = match &message.data {
        MessageData::Values(values) => *values,
        MessageData::Json(json) => {
            text = json.to_string();
            owned = attributes(text.as_bytes(), &DecodeLimits::default())
                .map_err(|error| NodeError::new(error.to_string()))?;
            &owned
        }
    };
    let values = values.iter().map(|value| Attribute {
        key: value.key.to_string(),
        value: value.value.clone(),
        last_update_ms: now_ms,
    });
    Ok(values.collect())
}

#[derive(Debug)]
pub struct DeleteAttributesNode {
    pub scope: AttributeScope,
    pub keys: Vec<String>,
    pub notifies_device: bool,
}

impl DeleteAttributesNode {
    pub fn process<'a>(
        &self,
        message: Arc<ChainMessage<'a>>,
        host: &mut dyn Host,
    ) -> Result<NodeOutcome<'a>, NodeError> {
        let keys = PatternFiller::new(&message).fill_all(&self.keys)?;
        host.delete_attributes(message.originator, self.scope, &keys, self.notifies_device)?;
        Ok(NodeOutcome::success(message))
    }
}
