//! Topics and payload formats that device profiles define. Without such a profile each check is one load of a flag.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use platform::decode::{
    DecodeLimits, DeviceSubscription, PayloadFormat, ProfileTransport, Telemetry, TopicForm, attributes, gateway_parts,
};
use platform::entities::Entities;
use platform::ids::{DeviceId, DeviceProfileId, Uuid};
use platform::model::DeviceProfile;

use crate::entry::{EntryKind, IngestEntry};
use crate::mutex::lock;

/// A profile, and the transport settings parsed from it.
type ParsedProfile = (Arc<DeviceProfile>, Arc<ProfileTransport>);

pub struct ProfileTransports {
    entities: Arc<Entities>,
    /// True if some profile defines its own topics or payloads.
    are_set: AtomicBool,
    parsed: Mutex<HashMap<DeviceProfileId, ParsedProfile>>,
}

impl ProfileTransports {
    pub fn new(entities: Arc<Entities>) -> ProfileTransports {
        ProfileTransports {
            entities,
            are_set: AtomicBool::new(false),
            parsed: Mutex::default(),
        }
    }

    /// Returns true if any profile defines its own topics or payloads.
    pub fn are_set(&self) -> bool {
        self.are_set.load(Relaxed)
    }

    /// Checks whether a profile defines its own topics or payloads. Returns true if so.
    pub fn refresh(&self) -> bool {
        let directory = self.entities.directory();
        let are_set = directory.profiles().any(|profile| {
            let transport = profile.transport();
            transport["transportPayloadTypeConfiguration"]["transportPayloadType"] == "PROTOBUF"
                || transport["deviceTelemetryTopic"].is_string()
                || transport["deviceAttributesTopic"].is_string()
                || transport["deviceAttributesSubscribeTopic"].is_string()
        });
        self.are_set.store(are_set, Relaxed);
        are_set
    }

    /// The transport settings of a device's profile, if messages to the device in this form are Protobuf.
    pub fn protobuf_of(&self, device: Uuid, form: TopicForm) -> Option<Arc<ProfileTransport>> {
        self.of(device).filter(|transport| transport.sends_protobuf(form))
    }

    /// The transport settings of a gateway's profile, if its payloads are Protobuf.
    pub fn protobuf_of_gateway(&self, gateway: Uuid) -> Option<Arc<ProfileTransport>> {
        self.of(gateway).filter(|transport| transport.is_protobuf())
    }

    /// The subscription of the device API that the profile's own filter stands for, if it has one.
    pub fn own_subscription(&self, device: Uuid, filter: &str) -> Option<DeviceSubscription> {
        let transport = self.of(device)?;
        transport
            .is_for_attributes(filter)
            .then_some(DeviceSubscription::Attributes(TopicForm::Long))
    }

    /// Returns false if the payload is invalid. Checks only kinds whose publisher can get an immediate answer.
    pub fn is_decodable(&self, entry: &IngestEntry<'_>) -> bool {
        let limits = DecodeLimits::default();
        let is_json = match entry.kind {
            EntryKind::Telemetry => Telemetry::decode(entry.body, entry.received_ms, &limits).is_ok(),
            EntryKind::Attributes => attributes(entry.body, &limits).is_ok(),
            EntryKind::GatewayTelemetry => gateway_parts(entry.body).is_ok_and(|parts| {
                let mut parts = parts.iter();
                parts.all(|part| part.telemetry(entry.received_ms, &limits).is_ok())
            }),
            EntryKind::GatewayAttributes => {
                gateway_parts(entry.body).is_ok_and(|parts| parts.iter().all(|part| part.attributes(&limits).is_ok()))
            }
            _ => true,
        };
        is_json
            || (entry.form != TopicForm::Short(PayloadFormat::Json)
                && self.of(entry.device).is_some_and(|transport| transport.is_protobuf()))
    }

    /// The transport settings of a device's profile, or `None` if no profile has any. Must not call the platform,
    /// which may be sending to the device at this moment.
    fn of(&self, device: Uuid) -> Option<Arc<ProfileTransport>> {
        if !self.are_set() {
            return None;
        }
        let profile = {
            let directory = self.entities.directory();
            let id = directory.device(DeviceId(device))?.profile;
            Arc::clone(directory.profile(id)?)
        };
        let id = profile.id?;
        let mut parsed = lock(&self.parsed);
        if let Some((of, transport)) = parsed.get(&id)
            && Arc::ptr_eq(of, &profile)
        {
            return Some(Arc::clone(transport));
        }
        // Saving a profile rejects settings that cannot be parsed.
        let transport = Arc::new(ProfileTransport::of(&profile).ok()?);
        parsed.insert(id, (profile, Arc::clone(&transport)));
        Some(transport)
    }
}
