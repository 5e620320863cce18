//! Ids of device sessions and provisioning sessions, and their client ids in the broker.

use platform::ids::Uuid;

/// Client id prefixes of device sessions. No other client of the broker may use them.
pub const DEVICE_PREFIX: &str = "$device/";
pub const PROVISION_PREFIX: &str = "$provision/";

/// First half of the id of a provisioning session. No UUID begins like this.
const PROVISIONING: [u8; 8] = [255; 8];

pub fn is_provisioning(session: Uuid) -> bool {
    session.0[..8] == PROVISIONING
}

/// The id of the provisioning session with this number.
pub fn provisioning_session(number: u64) -> Uuid {
    let mut session = [0; 16];
    session[..8].copy_from_slice(&PROVISIONING);
    session[8..].copy_from_slice(&number.to_be_bytes());
    Uuid(session)
}

/// The number of a provisioning session.
pub fn provisioning_number(session: Uuid) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&session.0[8..]);
    u64::from_be_bytes(number)
}

/// The client id of a device session or provisioning session.
pub fn client_id(session: Uuid) -> String {
    match is_provisioning(session) {
        false => format!("{DEVICE_PREFIX}{session}"),
        true => format!("{PROVISION_PREFIX}{}", provisioning_number(session)),
    }
}
