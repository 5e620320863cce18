//! [`Outlet`] receives the effects of message processing for subscribers, devices and other systems. The effects of a
//! device are in order.

use serde_json::Value as Json;

use super::RefusedKeys;
use crate::alarm_rules::AlarmTransition;
use crate::chain::{DebugEvent, ExternalCall, NodeError, NodeFailure, RpcCall};
use crate::decode::KeyValue;
use crate::ids::{DeviceId, EntityId, RuleChainId, TenantId};
use crate::model::{Alarm, Attribute, AttributeScope};

/// Methods must not block, because they run during message processing. Methods that are not implemented drop their
/// input.
pub trait PlatformOutlet {
    /// New values with one timestamp, for subscribers.
    fn telemetry(&mut self, _entity: EntityId, _ts_ms: i64, _values: &[KeyValue<'_>]) {}

    /// Changed attributes, for subscribers.
    fn attributes(&mut self, _entity: EntityId, _scope: AttributeScope, _updated: &[Attribute], _deleted: &[String]) {}

    /// Changed shared attributes, for the device itself.
    fn attributes_to_device(&mut self, _device: DeviceId, _updated: &[Attribute], _deleted: &[String]) {}

    /// The device is now connected through this gateway. Messages for the device go to the gateway.
    fn gateway_device_connected(&mut self, _gateway: DeviceId, _device: DeviceId, _name: &str) {}

    fn alarm(&mut self, _action: AlarmTransition, _alarm: &Alarm) {}

    /// Sends an RPC request. The sender later passes the answer to [`super::Platform::answer`] with this number.
    fn call_device(&mut self, _device: DeviceId, _number: u64, _call: &RpcCall) -> Result<(), NodeError> {
        Err(NodeError::new("NO_ACTIVE_CONNECTION"))
    }

    /// An RPC request was rejected because too many are pending. The waiting caller gets an error.
    fn refuse_call(&mut self, _device: DeviceId, _call: &RpcCall) {}

    fn reply_to_device(&mut self, _device: DeviceId, _request_id: i32, _body: &Json) -> Result<(), NodeError> {
        Err(NodeError::new("NO_ACTIVE_CONNECTION"))
    }

    /// Accepts an external request, or returns the reason for its rejection. The sender later passes the result to
    /// [`super::Platform::returned`] with this number.
    fn send(&mut self, _tenant: TenantId, _number: u64, _outbound: ExternalCall) -> Result<(), NodeError> {
        Err(NodeError::new("this server has no sender for external requests"))
    }

    fn log(&mut self, _chain: RuleChainId, _node: &str, _text: &str) {}

    /// A debug event of a chain of this tenant.
    fn debug(&mut self, _tenant: TenantId, _event: &DebugEvent<'_>) {}

    /// A message could not be decoded, or failed in a chain.
    fn failed(&mut self, _entity: EntityId, _node: &str, _problem: &str) {}

    /// Values with new keys were not stored, because the entity has too many.
    fn keys_refused(&mut self, _refused: &RefusedKeys) {}

    /// A message exceeded a limit of rule chains: number of nodes, size of derived messages or time.
    fn exceeded(&mut self, _tenant: TenantId, _at: &NodeFailure) {}
}

/// Drops everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOutlet;

impl PlatformOutlet for NoOutlet {}
