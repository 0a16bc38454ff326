#include "report/live.h"

// The library of the distribution was built with these, which change its classes. None is used here.
#define CPPHTTPLIB_OPENSSL_SUPPORT
#define CPPHTTPLIB_ZLIB_SUPPORT
#define CPPHTTPLIB_BROTLI_SUPPORT
#include <httplib.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <thread>

#include "kernels/error.h"
#include "report/page.h"

namespace wobble {
namespace {

constexpr const char* address = "127.0.0.1";
constexpr int first_port = 8080, last_port = 8179;

int bind(httplib::Server& server, int port) {
    if (port > 0) {
        if (server.bind_to_port(address, port)) return port;
        throw UserError("--port " + std::to_string(port) +
                        " is in use or may not be listened on; choose another, or leave --port out");
    }
    for (int p = first_port; p <= last_port; ++p)
        if (server.bind_to_port(address, p)) return p;
    throw UserError("no port from " + std::to_string(first_port) + " to " + std::to_string(last_port) +
                    " is free; choose one with --port");
}

/// Made again once a run has changed, for whoever asks next.
class Current {
  public:
    explicit Current(std::vector<History>& runs) : runs_(runs) {}

    std::string version() {
        const std::lock_guard lock(mutex_);
        return version_now();
    }
    std::string data() {
        const std::lock_guard lock(mutex_);
        const std::string now = version_now();
        if (now != made_) data_ = report_data(runs_, true, [](const std::string&) {}), made_ = now;
        return data_;
    }
    std::string page() { return report_page(report_title(runs_), data()); }

  private:
    std::string version_now() {
        std::string version;
        for (History& run : runs_) version += std::to_string(run.version()) + ".";
        return version;
    }

    std::vector<History>& runs_;
    std::mutex mutex_;
    std::string made_, data_;
};

}  // namespace

void serve_report(std::vector<History>& runs, int port) {
    // Signals are waited for by one thread; all others are started with them blocked.
    sigset_t ends;
    sigemptyset(&ends), sigaddset(&ends, SIGINT), sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, nullptr);

    httplib::Server server;
    Current current(runs);
    // Free again at once after this server; but not while another one listens there, which the library's
    // default would share with this one.
    server.set_socket_options([](socket_t socket) {
        const int yes = 1;
        setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    const int bound = bind(server, port);
    const std::string number = ":" + std::to_string(bound);
    server.set_pre_routing_handler([&](const httplib::Request& request, httplib::Response& response) {
        const std::string host = request.get_header_value("Host");
        if (host == address + number || host == "localhost" + number)
            return httplib::Server::HandlerResponse::Unhandled;
        response.status = 403;
        response.set_content("This report is served to 127.0.0.1 and localhost alone.\n", "text/plain");
        return httplib::Server::HandlerResponse::Handled;
    });
    const auto answer = [](httplib::Response& response, const auto& make, const char* type) {
        response.set_header("Cache-Control", "no-store");
        try {
            response.set_content(make(), type);
        } catch (const std::exception& error) {
            response.status = 500;
            response.set_content(std::string(error.what()) + "\n", "text/plain");
        }
    };
    server.Get("/", [&](const httplib::Request&, httplib::Response& response) {
        answer(
            response, [&] { return current.page(); }, "text/html; charset=utf-8");
    });
    server.Get("/version", [&](const httplib::Request&, httplib::Response& response) {
        answer(
            response, [&] { return current.version(); }, "text/plain");
    });
    server.Get("/data", [&](const httplib::Request&, httplib::Response& response) {
        answer(
            response, [&] { return current.data(); }, "application/json");
    });

    std::printf("report  http://%s:%d/ follows %s; Ctrl-C ends it\n", address, bound,
                report_title(runs).c_str());
    std::fflush(stdout);
    std::atomic<bool> ended = false;
    std::thread ender([&] {
        int signal = 0;
        sigwait(&ends, &signal);
        while (!server.is_running() && !ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        server.stop();
    });
    server.listen_after_bind();
    // Where the server ended by itself, the waiting thread is told.
    ended = true;
    pthread_kill(ender.native_handle(), SIGTERM);
    ender.join();
    std::printf("report  ended\n");
}

}  // namespace wobble
