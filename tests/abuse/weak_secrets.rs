//! Weak passwords, old activation links, and guesses at the secrets of provisioning and claims.

use serde_json::{Value as Json, json};

use crate::devices::rest::Rest;
use crate::support::api::Api;
use crate::support::http::request;
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";
/// More wrong secrets than an address may send at once.
const GUESSES: usize = 30;

const WEAK: [&str; 5] = ["123456", "aaaaaa", "12345678", "aaaaaaaa", "Password1"];

#[test]
fn weak_passwords_are_rejected() {
    let server = Server::start(&Config::new(CONFIG));
    let tenant = Rest::login(&server);
    let user = json!({"authority": "TENANT_ADMIN", "email": "ada@acme.org"});
    let user = tenant.ok("POST", "/api/user?sendActivationMail=false", &user);
    let id = user["id"]["id"].as_str().expect("an identifier");
    let (_, link) = tenant.raw("GET", &format!("/api/user/{id}/activationLink"), "");
    let (_, token) = link.split_once("activateToken=").expect("a link with a token");
    let admin = Api::of(&server);
    let own = std::fs::read_to_string(server.dir().join("data/admin-password")).expect("a password");
    for weak in WEAK {
        let activate = json!({"activateToken": token, "password": weak});
        assert_eq!(tenant.call("POST", "/api/noauth/activate", &activate).0, 400, "{weak}");
        let change = json!({"currentPassword": "tenant", "newPassword": weak});
        assert_eq!(
            tenant.call("POST", "/api/auth/changePassword", &change).0,
            400,
            "{weak}"
        );
        let change = json!({"current_password": own.trim(), "new_password": weak});
        assert_eq!(admin.call("POST", "/api/v1/password", &change).0, 422, "{weak}");
        let mqtt = json!({"name": "meter", "password": weak});
        assert_eq!(admin.call("POST", "/api/v1/users", &mqtt).0, 422, "{weak}");
    }
    let activate = json!({"activateToken": token, "password": "correct horse battery"});
    tenant.ok("POST", "/api/noauth/activate", &activate);
}

#[test]
fn wrong_claim_secrets_are_limited() {
    let server = Server::start(&Config::new(CONFIG));
    let (tenant, customer) = (Rest::login(&server), Rest::login_as(&server, "customer"));
    let device = tenant.device("Meter", "METER");
    let claiming = json!({"allowClaiming": true});
    tenant.ok(
        "POST",
        &format!("/api/plugins/telemetry/DEVICE/{device}/attributes/SERVER_SCOPE"),
        &claiming,
    );
    let mut peer = server.session(&Connect::new(V4, unique("device")).user_name("METER"));
    let open = r#"{"secretKey": "right", "durationMs": 600000}"#;
    peer.publish(&Publish::new("v1/devices/me/claim", open).qos(1));
    let claim = |secret: &str| {
        customer.call(
            "POST",
            "/api/customer/device/Meter/claim",
            &json!({"secretKey": secret}),
        )
    };
    let statuses: Vec<u16> = (0..GUESSES).map(|guess| claim(&format!("guess {guess}")).0).collect();
    assert_eq!(statuses.first(), Some(&400), "{statuses:?}");
    assert_eq!(statuses.last(), Some(&429), "{statuses:?}");
    assert_eq!(
        claim("right").0,
        429,
        "the right secret does not help after too many wrong ones"
    );
}

/// Creates a profile whose devices provision themselves, and returns its key and secret.
fn provisioning_profile(tenant: &Rest) -> (String, String) {
    let configuration = json!({"type": "ALLOW_CREATE_NEW_DEVICES", "provisionDeviceSecret": "right"});
    let profile = json!({"name": "P", "type": "DEFAULT", "transportType": "DEFAULT", "provisionType": "ALLOW_CREATE_NEW_DEVICES",
        "provisionDeviceKey": "key", "profileData": {"configuration": {"type": "DEFAULT"},
        "transportConfiguration": {"type": "DEFAULT"}, "provisionConfiguration": configuration}});
    tenant.ok("POST", "/api/deviceProfile", &profile);
    ("key".to_owned(), "right".to_owned())
}

fn provision_body(device: &str, key: &str, secret: &str) -> String {
    json!({"deviceName": device, "provisionDeviceKey": key, "provisionDeviceSecret": secret}).to_string()
}

/// A secret that was right from the same address before is not refused: others of its network may have the wrong one.
#[test]
fn wrong_provisioning_secrets_are_limited_over_http() {
    for (known_devices, last_status) in [(0, 429), (GUESSES, 200)] {
        let server = Server::start(&Config::new(CONFIG));
        let (key, secret) = provisioning_profile(&Rest::login(&server));
        let provision = |device: &str, secret: &str| {
            let (status, text) = request(
                server.http(),
                "POST",
                "/api/v1/provision",
                "",
                &provision_body(device, &key, secret),
            );
            (status, serde_json::from_str::<Json>(&text).unwrap_or(Json::Null))
        };
        for device in 0..known_devices {
            let (status, answer) = provision(&format!("good {device}"), &secret);
            assert_eq!(
                (status, &answer["status"]),
                (200, &json!("SUCCESS")),
                "right secrets are not limited"
            );
        }
        let statuses: Vec<u16> = (0..GUESSES)
            .map(|guess| provision("x", &format!("guess {guess}")).0)
            .collect();
        assert_eq!(
            (statuses.first(), statuses.last()),
            (Some(&200), Some(&429)),
            "{statuses:?}"
        );
        assert_eq!(provision("y", &secret).0, last_status);
    }
}

#[test]
fn wrong_provisioning_secrets_are_limited_over_mqtt() {
    let server = Server::start(&Config::new(CONFIG));
    let tenant = Rest::login(&server);
    let (key, secret) = provisioning_profile(&tenant);
    // Its first login would have to wait after the guesses.
    tenant.device("Last", "LAST");
    let mut last = server.session(&Connect::new(V4, unique("last")).user_name("LAST"));
    let mut peer = server.session(&Connect::new(V4, unique("new")).user_name("provision"));
    let ask = |peer: &mut Peer, device: &str, secret: &str| {
        peer.publish(&Publish::new("/provision/request", provision_body(device, &key, secret)).qos(1));
    };
    for guess in 0..GUESSES {
        ask(&mut peer, "x", &format!("guess {guess}"));
    }
    ask(&mut peer, "after the guesses", &secret);
    server.wait_until("requests are refused", |server| {
        server.log().contains("too many wrong secrets from its address")
    });
    // The requests are processed in order, also before the telemetry of another device.
    last.publish(&Publish::new("v1/devices/me/telemetry", r#"{"v":1}"#).qos(1));
    let devices = "/api/tenant/devices?pageSize=100&page=0&textSearch=Last";
    let found = tenant.ok("GET", devices, &Json::Null);
    let id = found["data"][0]["id"]["id"].as_str().expect("an identifier").to_owned();
    tenant.wait_for(
        &server,
        &format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys=v"),
        |all| all["v"][0]["value"] == "1",
    );
    let created = "/api/tenant/devices?pageSize=100&page=0&textSearch=after";
    assert_eq!(tenant.ok("GET", created, &Json::Null)["totalElements"], 0);
}
