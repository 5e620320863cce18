//! Where effects leave the platform: to subscribers, devices, other systems. In order per device.

use serde_json::Value as Json;

use crate::alarm_rules::Action;
use crate::chain::{DebugEvent, NodeError, Outbound, RpcCall};
use crate::decode::KeyValue;
use crate::ids::{DeviceId, EntityId, RuleChainId, TenantId};
use crate::model::{Alarm, Attribute, Scope};

/// None of it may block: it is called while messages are processed. What is not implemented is dropped.
pub trait Outlet {
    /// New values of one time, for subscribers.
    fn telemetry(&mut self, _entity: EntityId, _ts_ms: i64, _values: &[KeyValue<'_>]) {}

    /// For subscribers.
    fn attributes(&mut self, _entity: EntityId, _scope: Scope, _updated: &[Attribute], _deleted: &[String]) {}

    /// The device itself is to know of its shared attributes.
    fn attributes_to_device(&mut self, _device: DeviceId, _updated: &[Attribute], _deleted: &[String]) {}

    /// The gateway speaks for this device from now on: what the device is told goes there.
    fn came_behind(&mut self, _gateway: DeviceId, _device: DeviceId, _name: &str) {}

    fn alarm(&mut self, _action: Action, _alarm: &Alarm) {}

    /// The answer comes back with [`super::Platform::answer`] under this number.
    fn call_device(&mut self, _device: DeviceId, _number: u64, _call: &RpcCall) -> Result<(), NodeError> {
        Err(NodeError::new("NO_ACTIVE_CONNECTION"))
    }

    /// The platform has no room for what goes on when it is answered: whoever waits for the answer is told.
    fn refuse_call(&mut self, _device: DeviceId, _call: &RpcCall) {}

    fn reply_to_device(&mut self, _device: DeviceId, _request_id: i32, _body: &Json) -> Result<(), NodeError> {
        Err(NodeError::new("NO_ACTIVE_CONNECTION"))
    }

    /// Takes it over, or says why not. What the other system says comes back with [`super::Platform::returned`] under this number.
    fn send(&mut self, _tenant: TenantId, _number: u64, _outbound: Outbound) -> Result<(), NodeError> {
        Err(NodeError::new("there is no way to other systems"))
    }

    fn log(&mut self, _chain: RuleChainId, _node: &str, _text: &str) {}

    /// Of a chain of this tenant.
    fn debug(&mut self, _tenant: TenantId, _event: &DebugEvent<'_>) {}

    /// A message failed in a chain, or was not understood.
    fn failed(&mut self, _entity: EntityId, _node: &str, _problem: &str) {}
}

/// Drops everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOutlet;

impl Outlet for NoOutlet {}
