//! Entities by ThingsBoard's rules, with the embedded repository.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use crate::scratch::Scratch;
use auth::Password;
use platform::SqliteRepository;
use platform::credentials::MqttLogin;
use platform::decode::{Claim, Provision};
use platform::entities::{ClaimOutcome, Entities, EntityError, NewTenant, ProvisionOutcome, ReceptionMode};
use platform::ids::{CustomerId, TenantId, Uuid};
use platform::model::{
    Alarm, Authority, CredentialsType, Customer, Device, DeviceCredentials, DeviceProfile, RuleChain, Tenant, User,
};
use platform::repository::StateKind;
use serde_json::json;

const NOW: i64 = 1_700_000_000_000;

struct Fixture {
    entities: Entities,
    start: NewTenant,
    directory: Scratch,
}

fn open(directory: &Scratch) -> Entities {
    Entities::open(Arc::new(SqliteRepository::open(directory.path()).unwrap())).unwrap()
}

fn fixture() -> Fixture {
    let directory = Scratch::new();
    let entities = open(&directory);
    let tenant = Tenant {
        title: "Tenant".to_owned(),
        ..Tenant::default()
    };
    let start = entities.create_tenant(tenant, NOW).unwrap();
    Fixture {
        entities,
        start,
        directory,
    }
}

impl Fixture {
    fn tenant(&self) -> TenantId {
        self.start.tenant.id.unwrap()
    }

    fn device(&self, name: &str) -> Device {
        Device {
            tenant_id: self.tenant(),
            name: name.to_owned(),
            ..Device::default()
        }
    }

    fn customer(&self, title: &str) -> Customer {
        let customer = Customer {
            tenant_id: self.tenant(),
            title: title.to_owned(),
            ..Customer::default()
        };
        self.entities.save_customer(customer, NOW).unwrap()
    }

    fn login(&self, token: &str) -> Option<platform::ids::DeviceId> {
        let login = MqttLogin {
            client_id: "any",
            user_name: Some(token),
            password: None,
        };
        self.entities.directory().authenticate(&login)
    }
}

fn text<T: std::fmt::Debug>(result: Result<T, EntityError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn new_device_gets_profile_and_credentials() {
    let f = fixture();
    let device = f
        .entities
        .save_device(f.device("DW00000000"), Some("DW00000000"), NOW)
        .unwrap();
    assert_eq!((device.kind.as_str(), device.created_time), ("default", NOW));
    assert_eq!(device.device_profile_id, f.start.device_profile.id);
    assert_eq!(f.login("DW00000000"), device.id);
    let named = f
        .entities
        .save_device(
            Device {
                kind: "meter".to_owned(),
                ..f.device("M")
            },
            None,
            NOW,
        )
        .unwrap();
    let credentials = f.entities.device_credentials(named.id.unwrap()).unwrap();
    assert_eq!(credentials.credentials_id.as_ref().unwrap().len(), 20);
    let made = f
        .entities
        .find_by_name::<DeviceProfile>(f.tenant().0, "meter")
        .unwrap()
        .unwrap();
    assert_eq!(named.device_profile_id, made.id);
    let json = serde_json::to_value(&device).unwrap();
    assert_eq!(json["id"]["entityType"], "DEVICE");
    assert_eq!(json["customerId"]["id"], "13814000-1dd2-11b2-8080-808080808080");
}

#[test]
fn entities_survive_a_restart() {
    let f = fixture();
    let device = f.entities.save_device(f.device("D"), Some("T"), NOW).unwrap();
    let again = open(&f.directory);
    assert_eq!(again.directory().device_of_token("T"), device.id);
    assert_eq!(&*again.directory().device(device.id.unwrap()).unwrap().name, "D");
    assert_eq!(again.root_chain(f.tenant()).unwrap().unwrap().name, "Root Rule Chain");
}

#[test]
fn errors_have_thingsboards_texts() {
    let f = fixture();
    f.entities.save_device(f.device("D"), Some("T"), NOW).unwrap();
    f.customer("C");
    let default_profile = f.start.device_profile.id.unwrap();
    let unknown = DeviceCredentials {
        credentials_id: Some("X".to_owned()),
        ..DeviceCredentials::default()
    };
    let cases = [
        (
            text(f.entities.save_device(f.device("D"), None, NOW)),
            "Device with such name already exists!",
        ),
        (
            text(f.entities.save_device(f.device("E"), Some("T"), NOW)),
            "Specified credentials are already registered!",
        ),
        (
            text(f.entities.save_device(f.device(" "), None, NOW)),
            "Device name should be specified!",
        ),
        (
            text(f.entities.save_device(
                Device {
                    customer_id: Some(CustomerId(f.tenant().0)),
                    ..f.device("E")
                },
                None,
                NOW,
            )),
            "Can't assign device to non-existent customer!",
        ),
        (
            text(f.entities.save_customer(
                Customer {
                    tenant_id: f.tenant(),
                    title: "C".to_owned(),
                    ..Customer::default()
                },
                NOW,
            )),
            "Customer with such title already exists!",
        ),
        (
            text(f.entities.delete_device_profile(default_profile)),
            "Deletion of Default Device Profile is prohibited!",
        ),
        (
            text(f.entities.save_device_credentials(unknown, NOW)),
            "Can't assign device credentials to non-existent device!",
        ),
        (
            text(f.entities.delete_rule_chain(f.start.root_chain.id.unwrap())),
            "Deletion of Root Tenant Rule Chain is prohibited!",
        ),
        (
            text(f.entities.get::<Device>(f.tenant().0)),
            "Requested item wasn't found!",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
    assert_eq!(f.login("X"), None);
}

#[test]
fn stale_version_is_rejected() {
    let f = fixture();
    let first = f.entities.save_device(f.device("D"), None, NOW).unwrap();
    let renamed = Device {
        label: Some("a".to_owned()),
        ..first.clone()
    };
    let second = f.entities.save_device(renamed, None, NOW).unwrap();
    assert_eq!(second.version, Some(2));
    let stale = f.entities.save_device(first.clone(), None, NOW).unwrap_err();
    assert_eq!(stale.to_string(), "Device was already changed by someone else");
    f.entities
        .save_device(Device { version: None, ..first }, None, NOW)
        .unwrap();
}

#[test]
fn credentials_are_replaced() {
    let f = fixture();
    let device = f.entities.save_device(f.device("D"), Some("T"), NOW).unwrap();
    let mut credentials = f.entities.device_credentials(device.id.unwrap()).unwrap();
    credentials.credentials_type = CredentialsType::MqttBasic;
    credentials.credentials_value = Some(r#"{"userName":"u","password":"p"}"#.to_owned());
    f.entities.save_device_credentials(credentials, NOW).unwrap();
    assert_eq!(f.login("T"), None);
    let login = MqttLogin {
        client_id: "c",
        user_name: Some("u"),
        password: Some(b"p"),
    };
    assert_eq!(f.entities.directory().authenticate(&login), device.id);
}

#[test]
fn deleted_device_frees_its_token() {
    let f = fixture();
    let device = f.entities.save_device(f.device("D"), Some("T"), NOW).unwrap();
    f.entities.delete_device(device.id.unwrap()).unwrap();
    assert_eq!(f.login("T"), None);
    assert_eq!(f.entities.directory().device_count(), 0);
    f.entities.save_device(f.device("D"), Some("T"), NOW).unwrap();
}

#[test]
fn profiles_keep_their_json_and_rename_their_devices() {
    let f = fixture();
    let alarms = json!([{"id": "a", "alarmType": "hot", "createRules": {}, "clearRule": null, "own": {"kept": [1]}}]);
    let mut profile = DeviceProfile {
        tenant_id: f.tenant(),
        name: "P".to_owned(),
        ..DeviceProfile::default()
    };
    profile.profile_data["alarms"] = alarms.clone();
    let profile = f.entities.save_device_profile(profile, NOW).unwrap();
    assert_eq!(profile.profile_data["alarms"], alarms);
    let device = Device {
        device_profile_id: profile.id,
        ..f.device("D")
    };
    let device = f.entities.save_device(device, None, NOW).unwrap();
    f.entities
        .save_device_profile(
            DeviceProfile {
                name: "Q".to_owned(),
                ..profile.clone()
            },
            NOW,
        )
        .unwrap();
    assert_eq!(f.entities.get::<Device>(device.id.unwrap().0).unwrap().kind, "Q");
    let used = text(f.entities.delete_device_profile(profile.id.unwrap()));
    assert_eq!(used, "The device profile referenced by the devices cannot be deleted!");
    f.entities.set_default_device_profile(profile.id.unwrap(), NOW).unwrap();
    assert_eq!(f.entities.default_device_profile(f.tenant()).unwrap().id, profile.id);
    let mut twice = DeviceProfile {
        tenant_id: f.tenant(),
        name: "R".to_owned(),
        ..DeviceProfile::default()
    };
    twice.profile_data["alarms"] = json!([{"alarmType": "hot"}, {"alarmType": "hot"}]);
    let error = text(f.entities.save_device_profile(twice, NOW));
    assert_eq!(
        error,
        "Can't create device profile with the same alarm rule types: \"hot\"!"
    );
}

fn provisioned(f: &Fixture, strategy: &str) -> DeviceProfile {
    let profile = json!({"tenantId": f.start.tenant.id, "name": strategy, "type": "DEFAULT", "transportType": "DEFAULT",
        "provisionType": strategy, "provisionDeviceKey": strategy, "profileData": {
            "configuration": {"type": "DEFAULT"}, "transportConfiguration": {"type": "DEFAULT"},
            "provisionConfiguration": {"type": strategy, "provisionDeviceSecret": "secret"}, "alarms": null}});
    f.entities
        .save_device_profile(serde_json::from_value(profile).unwrap(), NOW)
        .unwrap()
}

fn request(key: &str, secret: &str, name: &str) -> Provision {
    Provision {
        device_name: name.to_owned(),
        key: key.to_owned(),
        secret: secret.to_owned(),
        ..Provision::default()
    }
}

#[test]
fn new_devices_are_provisioned_once() {
    let f = fixture();
    provisioned(&f, "ALLOW_CREATE_NEW_DEVICES");
    let key = "ALLOW_CREATE_NEW_DEVICES";
    let provision = |request: &Provision| f.entities.provision(request, NOW).unwrap();
    let ProvisionOutcome::Success { credentials, is_new } = provision(&request(key, "secret", "P1")) else {
        panic!("not provisioned");
    };
    assert!(is_new);
    assert_eq!(
        f.login(credentials.credentials_id.as_ref().unwrap()),
        Some(credentials.device_id)
    );
    assert_eq!(
        provision(&request(key, "secret", "P1")),
        ProvisionOutcome::Failure(Some(credentials.device_id))
    );
    assert_eq!(provision(&request(key, "wrong", "P2")), ProvisionOutcome::NotFound);
    assert_eq!(
        provision(&request("unknown", "secret", "P2")),
        ProvisionOutcome::NotFound
    );
    assert_eq!(provision(&request("", "secret", "P2")), ProvisionOutcome::NotFound);
    let basic = Provision {
        credentials_type: CredentialsType::MqttBasic,
        user_name: Some("u".to_owned()),
        password: Some("p".to_owned()),
        ..request(key, "secret", "P3")
    };
    assert!(matches!(provision(&basic), ProvisionOutcome::Success { .. }));
}

#[test]
fn known_devices_are_provisioned_once() {
    let f = fixture();
    let profile = provisioned(&f, "CHECK_PRE_PROVISIONED_DEVICES");
    let device = Device {
        device_profile_id: profile.id,
        ..f.device("K")
    };
    f.entities.save_device(device, Some("T"), NOW).unwrap();
    let provision = |name: &str| {
        f.entities
            .provision(&request("CHECK_PRE_PROVISIONED_DEVICES", "secret", name), NOW)
            .unwrap()
    };
    assert!(matches!(
        provision("K"),
        ProvisionOutcome::Success { is_new: false, .. }
    ));
    assert!(matches!(provision("K"), ProvisionOutcome::Failure(Some(_))));
    assert_eq!(provision("unknown"), ProvisionOutcome::Failure(None));
}

#[test]
fn devices_are_claimed_with_their_secret() {
    let f = fixture();
    let customer = f.customer("C").id.unwrap();
    let device = f.entities.save_device(f.device("D"), None, NOW).unwrap();
    let id = device.id.unwrap();
    let claim = Claim {
        secret_key: "s".to_owned(),
        duration_ms: 1000,
    };
    let take = |device: &Device, secret: &str, now_ms| f.entities.claim(device, customer, secret, now_ms).unwrap();
    assert_eq!(take(&device, "s", NOW), ClaimOutcome::Failure);
    f.entities
        .allow_claim(id, &claim, (ReceptionMode::Live, NOW), NOW)
        .unwrap();
    assert_eq!(take(&device, "wrong", NOW), ClaimOutcome::Failure);
    f.entities
        .allow_claim(id, &claim, (ReceptionMode::Live, NOW), NOW)
        .unwrap();
    assert_eq!(take(&device, "s", NOW + 1001), ClaimOutcome::Failure);
    f.entities
        .allow_claim(id, &claim, (ReceptionMode::Live, NOW), NOW)
        .unwrap();
    let ClaimOutcome::Success(claimed) = take(&device, "s", NOW + 1000) else {
        panic!("not claimed")
    };
    assert_eq!(claimed.customer_id, Some(customer));
    assert_eq!(take(&claimed, "s", NOW), ClaimOutcome::Claimed);
    assert_eq!(
        text(f.entities.allow_claim(id, &claim, (ReceptionMode::Live, NOW), NOW)),
        "Device [D] has been already claimed!"
    );
    let given_back = f.entities.reclaim(&claimed, NOW).unwrap();
    assert_eq!(given_back.customer_id, Some(CustomerId::NULL));
}

/// Allowed and used claims survive a restart.
#[test]
fn claims_survive_a_restart_until_they_expire() {
    let mut f = fixture();
    let customer = f.customer("C").id.unwrap();
    let [taken, wrong, old, waits, gone] = ["taken", "wrong", "old", "waits", "gone"]
        .map(|name| f.entities.save_device(f.device(name), None, NOW).unwrap());
    let claim = |duration_ms| Claim {
        secret_key: "s".to_owned(),
        duration_ms,
    };
    let allow = |f: &Fixture, device: &Device, origin: ReceptionMode, duration_ms, since_ms, now_ms| {
        let id = device.id.unwrap();
        f.entities
            .allow_claim(id, &claim(duration_ms), (origin, since_ms), now_ms)
    };
    for device in [&taken, &wrong, &waits, &gone] {
        allow(&f, device, ReceptionMode::Live, 10_000, NOW, NOW).unwrap();
    }
    allow(&f, &old, ReceptionMode::Live, 100, NOW, NOW).unwrap();
    f.entities.delete_device(gone.id.unwrap()).unwrap();
    let take = |f: &Fixture, device: &Device, secret: &str, now_ms| {
        let device: Device = f.entities.get(device.id.unwrap().0).unwrap();
        match f.entities.claim(&device, customer, secret, now_ms).unwrap() {
            ClaimOutcome::Success(_) => "success",
            ClaimOutcome::Failure => "failure",
            ClaimOutcome::Claimed => "claimed",
        }
    };
    assert_eq!(take(&f, &taken, "s", NOW + 1), "success");
    assert_eq!(take(&f, &wrong, "x", NOW + 1), "failure");
    f.entities = open(&f.directory);
    // The log is replayed.
    for (device, duration_ms) in [(&wrong, 10_000), (&waits, 10_000), (&old, 100)] {
        allow(&f, device, ReceptionMode::Replay, duration_ms, NOW, NOW + 200).unwrap();
    }
    assert!(allow(&f, &taken, ReceptionMode::Replay, 10_000, NOW, NOW + 200).is_err());
    let rows = [
        (&taken, "claimed"),
        (&wrong, "failure"),
        (&old, "failure"),
        (&waits, "success"),
    ];
    for (device, expected) in rows {
        assert_eq!(take(&f, device, "s", NOW + 200), expected, "{}", device.name);
    }
    // After a reclaim the device must allow a claim again.
    let owned: Device = f.entities.get(waits.id.unwrap().0).unwrap();
    f.entities.reclaim(&owned, NOW + 300).unwrap();
    allow(&f, &waits, ReceptionMode::Replay, 10_000, NOW, NOW + 300).unwrap();
    assert_eq!(take(&f, &waits, "s", NOW + 300), "failure");
    allow(&f, &waits, ReceptionMode::Live, 10_000, NOW + 301, NOW + 301).unwrap();
    f.entities = open(&f.directory);
    assert_eq!(take(&f, &waits, "s", NOW + 10_301), "success");
    // An expired claim is replaced by a new one, and removed.
    allow(&f, &wrong, ReceptionMode::Live, 10, NOW + 400, NOW + 400).unwrap();
    allow(&f, &wrong, ReceptionMode::Live, 50_000, NOW + 500, NOW + 500).unwrap();
    f.entities.remove_expired_claims(NOW + 20_000).unwrap();
    assert_eq!(stored_claims(&f), [wrong.id.unwrap().0]);
    assert_eq!(take(&f, &wrong, "s", NOW + 20_001), "success");
}

fn stored_claims(f: &Fixture) -> Vec<Uuid> {
    let mut ids = Vec::new();
    let visit = &mut |id, _: &[u8]| ids.push(id);
    f.entities.repository().for_each_state(StateKind::Claim, visit).unwrap();
    ids
}

/// A claim is used up only together with the change of the device.
#[test]
fn failed_claim_stays_open() {
    let f = fixture();
    let customer = f.customer("C").id.unwrap();
    let devices = ["A", "B", "C"].map(|name| f.entities.save_device(f.device(name), None, NOW).unwrap());
    let claim = Claim {
        secret_key: "s".to_owned(),
        duration_ms: 1000,
    };
    // All devices of a message at once; owned or deleted devices do not affect the others.
    let owned = Device {
        customer_id: Some(customer),
        ..f.device("owned")
    };
    let owned = f.entities.save_device(owned, None, NOW).unwrap();
    let wanted = [&owned].into_iter().chain(&devices);
    let wanted: Vec<_> = wanted.map(|device| (device.id.unwrap(), claim.clone())).collect();
    let refused = f.entities.allow_claims(&wanted, (ReceptionMode::Live, NOW), NOW);
    assert_eq!(text(refused), "Device [owned] has been already claimed!");
    assert_eq!(stored_claims(&f).len(), 3);
    let taken = |device: &Device, customer| f.entities.claim(device, customer, "s", NOW);
    let unknown_customer = CustomerId(Uuid([9; 16]));
    assert!(taken(&devices[0], unknown_customer).is_err());
    assert!(matches!(taken(&devices[0], customer), Ok(ClaimOutcome::Success(_))));
    assert!(matches!(taken(&devices[0], customer), Ok(ClaimOutcome::Claimed)));
    // Claims are deleted with their devices, and with the tenant.
    f.entities.delete_device(devices[1].id.unwrap()).unwrap();
    assert_eq!(stored_claims(&f).len(), 2);
    f.entities.delete_tenant(f.tenant()).unwrap();
    assert!(stored_claims(&f).is_empty());
}

fn user(f: &Fixture, email: &str, authority: Authority, customer: Option<CustomerId>) -> User {
    User {
        id: None,
        created_time: 0,
        tenant_id: if authority == Authority::SysAdmin {
            TenantId::NULL
        } else {
            f.tenant()
        },
        customer_id: customer,
        email: email.to_owned(),
        authority,
        first_name: None,
        last_name: None,
        phone: None,
        name: String::new(),
        additional_info: None,
        version: None,
    }
}

#[test]
fn users_are_activated_and_log_in() {
    let f = fixture();
    let (saved, token) = f
        .entities
        .save_user(user(&f, "T@example.org", Authority::TenantAdmin, None), NOW)
        .unwrap();
    let password = Password::new("secret");
    assert_eq!(f.entities.login("t@example.org", &password).unwrap(), None);
    let token = token.unwrap();
    let text_of = |error: EntityError| error.to_string();
    let late = f
        .entities
        .activate_user(&token, &password, 1000, NOW + 1000)
        .map_err(text_of);
    assert!(late.unwrap_err().contains("expired"));
    let user_id = saved.id.unwrap();
    let same = f.entities.activation_token(user_id, 1000, NOW + 999).unwrap();
    assert_eq!(same.as_ref(), Some(&token));
    let renewed = f.entities.activation_token(user_id, 1000, NOW + 1000).unwrap().unwrap();
    assert_ne!(renewed, token);
    assert!(f.entities.activate_user(&token, &password, 1000, NOW + 1001).is_err());
    f.entities.activate_user(&renewed, &password, 1000, NOW + 1999).unwrap();
    assert_eq!(f.entities.activation_token(user_id, 1000, NOW).unwrap(), None);
    assert_eq!(
        f.entities.login("t@EXAMPLE.org", &password).unwrap().unwrap().id,
        saved.id
    );
    assert_eq!(
        f.entities.login("t@example.org", &Password::new("other")).unwrap(),
        None
    );
    assert_eq!(f.entities.login("unknown@example.org", &password).unwrap(), None);
    f.entities.delete_user(saved.id.unwrap()).unwrap();
    assert_eq!(f.entities.login("t@example.org", &password).unwrap(), None);
}

#[test]
fn invalid_users_are_rejected() {
    let f = fixture();
    f.entities
        .save_user(user(&f, "a@example.org", Authority::SysAdmin, None), NOW)
        .unwrap();
    let customer = f.customer("C").id;
    let cases = [
        (
            user(&f, "a@example.org", Authority::TenantAdmin, None),
            "User with email 'a@example.org' already present in database!",
        ),
        (
            user(&f, "nonsense", Authority::TenantAdmin, None),
            "Invalid email address format 'nonsense'!",
        ),
        (
            user(&f, "", Authority::TenantAdmin, None),
            "User email should be specified!",
        ),
        (
            user(&f, "b@example.org", Authority::TenantAdmin, customer),
            "Tenant administrator can't be assigned to customer!",
        ),
        (
            user(&f, "b@example.org", Authority::CustomerUser, None),
            "Customer user should be assigned to customer!",
        ),
    ];
    for (user, expected) in cases {
        assert_eq!(text(f.entities.save_user(user, NOW)), expected);
    }
}

#[test]
fn deleted_customer_keeps_its_devices() {
    let f = fixture();
    let customer = f.customer("C").id.unwrap();
    let owned = Device {
        customer_id: Some(customer),
        ..f.device("D")
    };
    let device = f.entities.save_device(owned, Some("T"), NOW).unwrap().id.unwrap();
    f.entities
        .save_user(user(&f, "c@example.org", Authority::CustomerUser, Some(customer)), NOW)
        .unwrap();
    f.entities.delete_customer(customer, NOW).unwrap();
    assert_eq!(
        f.entities.get::<Device>(device.0).unwrap().customer_id,
        Some(CustomerId::NULL)
    );
    assert_eq!(
        f.entities.directory().device(device).unwrap().customer,
        CustomerId::NULL
    );
    assert!(f.entities.user_by_email("c@example.org").unwrap().is_none());
}

#[test]
fn deleted_tenant_deletes_its_entities() {
    let f = fixture();
    f.entities.save_device(f.device("D"), Some("T"), NOW).unwrap();
    f.entities.delete_tenant(f.tenant()).unwrap();
    assert_eq!(f.login("T"), None);
    assert!(f.entities.root_chain(f.tenant()).unwrap().is_none());
    assert!(f.entities.find_credentials("T").unwrap().is_none());
}

#[test]
fn root_chain_can_be_changed() {
    let f = fixture();
    let chain = RuleChain {
        tenant_id: f.tenant(),
        name: "Mine".to_owned(),
        ..RuleChain::default()
    };
    let chain = f.entities.save_rule_chain(chain, NOW).unwrap();
    assert!(!chain.root);
    let metadata = json!({"firstNodeIndex": 0, "nodes": [], "connections": []});
    f.entities
        .save_rule_chain_metadata(chain.id.unwrap(), metadata.clone(), NOW)
        .unwrap();
    for _ in 0..2 {
        f.entities.set_root_chain(chain.id.unwrap(), NOW).unwrap();
        let root = f.entities.root_chain(f.tenant()).unwrap().unwrap();
        assert_eq!((root.id, root.metadata.as_ref()), (chain.id, Some(&metadata)));
    }
    f.entities.delete_rule_chain(f.start.root_chain.id.unwrap()).unwrap();
}

#[test]
fn json_with_nulls_and_unknown_fields_is_read() {
    let body = json!({"id": null, "createdTime": null, "tenantId": null, "name": "D", "type": null, "label": null,
        "version": null, "displayName": "x", "externalId": null, "deviceData": null, "additionalInfo": {"gateway": true}});
    let device: Device = serde_json::from_value(body).unwrap();
    assert!(device.is_gateway());
    let alarm = json!({"type": "t", "severity": "MAJOR", "more": 1,
        "originator": {"entityType": "DEVICE", "id": "784f394c-42b6-435a-983c-b7beff2784f9"}});
    let alarm: Alarm = serde_json::from_value(alarm).unwrap();
    let json = serde_json::to_value(&alarm).unwrap();
    assert_eq!((&json["status"], &json["name"]), (&json!("ACTIVE_UNACK"), &json!("t")));
}
