//! Access rules of a session, for the broker.

use auth::{SessionAcl, SubscriptionGrant};
use broker::{SessionAccess, SubscribeAccess};
use mqtt::QoS;

pub struct SessionRights(pub SessionAcl);

impl SessionAccess for SessionRights {
    fn can_publish(&self, topic: &str, qos: QoS, retain: bool) -> bool {
        self.0.publish(topic, qos, retain)
    }

    fn can_subscribe(&self, filter: &str) -> SubscribeAccess {
        match self.0.subscribe(filter) {
            SubscriptionGrant::Denied => SubscribeAccess::Denied,
            SubscriptionGrant::Allowed {
                filter_deliveries: true,
            } => SubscribeAccess::AllowedInPart,
            SubscriptionGrant::Allowed {
                filter_deliveries: false,
            } => SubscribeAccess::Allowed,
        }
    }

    fn can_receive(&self, topic: &str) -> bool {
        self.0.can_receive(topic)
    }
}
