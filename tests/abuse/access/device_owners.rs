//! The former customer of a device tries to use the rights that the device's present customer has.

use serde_json::{Value as Json, json};

use crate::devices::rest::Rest;
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";

fn id_of(entity: &Json) -> String {
    entity["id"]["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{entity}"))
        .to_owned()
}

/// Creates a customer with a user, and logs in as the user. Returns the ID of the customer, too.
fn customer(server: &Server, tenant: &Rest, name: &str) -> (Rest, String) {
    let customer = tenant.ok("POST", "/api/customer", &json!({ "title": name }));
    let email = format!("{name}@acme.org");
    let user = json!({"authority": "CUSTOMER_USER", "email": email, "customerId": customer["id"]});
    let user = id_of(&tenant.ok("POST", "/api/user?sendActivationMail=false", &user));
    let (_, link) = tenant.raw("GET", &format!("/api/user/{user}/activationLink"), "");
    let (_, token) = link.split_once("activateToken=").expect("a link with a token");
    let body = json!({"activateToken": token, "password": "correct horse battery"});
    let pair = tenant.ok("POST", "/api/noauth/activate", &body);
    let token = pair["token"].as_str().expect("a token");
    (Rest::with_token(server, token), id_of(&customer))
}

#[test]
fn alarms_belong_to_the_present_customer_of_the_device() {
    let server = Server::start(&Config::new(CONFIG));
    let tenant = Rest::login(&server);
    let (old, old_id) = customer(&server, &tenant, "old");
    let (new, new_id) = customer(&server, &tenant, "new");
    let device = tenant.device("D", "D");
    let assign = |customer: &str| {
        tenant.ok(
            "POST",
            &format!("/api/customer/{customer}/device/{device}"),
            &Json::Null,
        )
    };
    assign(&old_id);
    let originator = json!({"entityType": "DEVICE", "id": device});
    let raise = |kind: &str| {
        let alarm = json!({"type": kind, "severity": "MAJOR", "originator": originator});
        id_of(&tenant.ok("POST", "/api/alarm", &alarm))
    };
    let first = raise("first");
    let read = |rest: &Rest, alarm: &str| rest.call("GET", &format!("/api/alarm/{alarm}"), &Json::Null).0;
    let total = |rest: &Rest| rest.ok("GET", "/api/alarms?pageSize=10&page=0", &Json::Null)["totalElements"].clone();
    assert_eq!((read(&old, &first), read(&new, &first)), (200, 403));

    assign(&new_id);
    let second = raise("second");
    for alarm in [&first, &second] {
        assert_eq!((read(&old, alarm), read(&new, alarm)), (403, 200), "{alarm}");
        let path = format!("/api/alarm/{alarm}/ack");
        assert_eq!(old.call("POST", &path, &Json::Null).0, 403);
        assert_eq!(new.call("POST", &path, &Json::Null).0, 200);
        let shown = tenant.ok("GET", &format!("/api/alarm/{alarm}"), &Json::Null);
        assert_eq!(shown["customerId"]["id"], new_id.as_str(), "{shown}");
    }
    assert_eq!((total(&old), total(&new)), (json!(0), json!(2)));

    tenant.ok("DELETE", &format!("/api/customer/device/{device}"), &Json::Null);
    assert_eq!((read(&old, &first), read(&new, &first)), (403, 403));
    assert_eq!((total(&old), total(&new)), (json!(0), json!(0)));
    assert_eq!(read(&tenant, &first), 200);
}
