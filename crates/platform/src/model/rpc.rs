//! A persistent RPC request to a device: the request, its status and the response.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Entity, IndexColumns, or_default, row};
use crate::ids::{DeviceId, EntityType, RpcId, TenantId, Uuid, named_enum};

named_enum! {
    /// Status of an RPC request.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "UPPERCASE")]
    pub enum RpcStatus {
        /// Waits for the device to connect.
        #[default]
        Queued "QUEUED",
        /// Sent, but not acknowledged by the device.
        Sent "SENT",
        /// Acknowledged by the device. Final for a one-way request.
        Delivered "DELIVERED",
        /// The device has responded.
        Successful "SUCCESSFUL",
        /// The device did not acknowledge it in time. It is sent again.
        Timeout "TIMEOUT",
        /// It expired before it was finished.
        Expired "EXPIRED",
        /// Not acknowledged after the last retry.
        Failed "FAILED",
        Deleted "DELETED",
    }
}

impl RpcStatus {
    /// The type of the rule chain message.
    pub fn message_type(self) -> &'static str {
        match self {
            RpcStatus::Queued => "RPC_QUEUED",
            RpcStatus::Sent => "RPC_SENT",
            RpcStatus::Delivered => "RPC_DELIVERED",
            RpcStatus::Successful => "RPC_SUCCESSFUL",
            RpcStatus::Timeout => "RPC_TIMEOUT",
            RpcStatus::Expired => "RPC_EXPIRED",
            RpcStatus::Failed => "RPC_FAILED",
            RpcStatus::Deleted => "RPC_DELETED",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rpc {
    pub id: Option<RpcId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    #[serde(deserialize_with = "or_default")]
    pub device_id: DeviceId,
    #[serde(deserialize_with = "or_default")]
    pub expiration_time: i64,
    /// See [`Rpc::set_request`].
    pub request: Value,
    pub response: Value,
    #[serde(deserialize_with = "or_default")]
    pub status: RpcStatus,
    pub additional_info: Value,
}

/// The request and its retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcRequestBody {
    /// The request number of the device API.
    pub number: i32,
    pub is_one_way: bool,
    pub method: String,
    /// JSON.
    pub params: String,
    pub retries: Option<u32>,
}

impl Rpc {
    /// Sets the request in ThingsBoard's format, plus the request number.
    pub fn set_request(&mut self, body: &RpcRequestBody) {
        self.request = json!({
            "id": self.id.map(|id| id.0),
            "tenantId": self.tenant_id,
            "deviceId": self.device_id,
            "oneway": body.is_one_way,
            "expirationTime": self.expiration_time,
            "body": {"method": body.method, "params": body.params},
            "persisted": true,
            "retries": body.retries,
            "requestId": body.number,
        });
    }

    pub fn request_body(&self) -> Option<RpcRequestBody> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some(RpcRequestBody {
            number: i32::try_from(self.request["requestId"].as_i64()?).ok()?,
            is_one_way: self.request["oneway"].as_bool()?,
            method: text(&self.request["body"]["method"])?,
            params: text(&self.request["body"]["params"])?,
            retries: self.request["retries"]
                .as_u64()
                .and_then(|retries| retries.try_into().ok()),
        })
    }
}

impl Entity for Rpc {
    const KIND: EntityType = EntityType::Rpc;

    fn id(&self) -> Option<Uuid> {
        self.id.map(|id| id.0)
    }

    /// Only the server changes it.
    fn version(&self) -> Option<i64> {
        None
    }

    fn stamp(&mut self, id: Uuid, _version: i64) {
        self.id = Some(RpcId(id));
    }

    fn row(&self) -> IndexColumns {
        IndexColumns {
            parent: self.device_id.0,
            subtype: self.status.name().to_owned(),
            ..row(self.id(), self.tenant_id.0, "")
        }
    }
}
