// `./train report`, as a person would ask for it.
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "test/program.h"

namespace wobble::test {
namespace {

const std::string small =
    " --data 'synthetic:markov?order=1&vocab=32&seed=3' --layers 1 --heads 2 --channels 16 --context 8 "
    "--batch 2"
    " --eval-sequences 4 --log-every 1000 ";

class ReportProgram : public Program {
  protected:
    void refuses(const std::string& arguments, const std::vector<std::string>& words) {
        const Outcome o = train("report " + arguments);
        EXPECT_EQ(o.status, 2) << arguments << "\n" << o.out << o.err;
        EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
        for (const std::string& word : words)
            EXPECT_NE(o.err.find(word), std::string::npos) << word << " in: " << o.err;
        EXPECT_FALSE(std::filesystem::exists(path("report.html"))) << arguments;
    }
};

/// What a server on this machine answers; empty when there is none.
std::string get(int port, const std::string& path, const std::string& host) {
    const int connection = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET, to.sin_port = htons(uint16_t(port)), to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::string answer;
    if (connect(connection, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) {
        const std::string request =
            "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n";
        char some[65536];
        if (write(connection, request.data(), request.size()) > 0)
            for (ssize_t n; (n = read(connection, some, sizeof some)) > 0;) answer.append(some, size_t(n));
    }
    close(connection);
    return answer;
}

TEST_F(ReportProgram, IsAFileOfItsOwn) {
    train("--run a --steps 30 --probes full --probe-every 3" + small);
    train("--run b --steps 20 --lr 3 --clip 0" + small);
    const Outcome o = train("report a b/");
    ASSERT_EQ(o.status, 0) << o.err;
    EXPECT_NE(o.out.find(path("report.html").string()), std::string::npos) << o.out;
    const std::string page = read("report.html");
    for (const char* part :
         {"<!DOCTYPE html>", "\"name\":\"a\"", "\"name\":\"b\"", "Permission is hereby granted"})
        EXPECT_NE(page.find(part), std::string::npos) << part;
    EXPECT_EQ(train("report a -o other.html").status, 0);
    EXPECT_FALSE(read("other.html").empty());
    for (const auto& entry : std::filesystem::directory_iterator(path(".")))
        EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << "what was not whole is left";
    EXPECT_EQ(train("report a", "cd a && mkdir deeper && cd .. && ").status, 0);
}

TEST_F(ReportProgram, RefusesWhatItCannotUse) {
    train("--run a --steps 3" + small);
    std::filesystem::create_directory(path("empty"));
    write("file", "text");
    std::filesystem::create_directory(path("strange"));
    write("strange/run.db", "this is no database, though it is called one");
    refuses("", {"no run", "expected", "./train report"});
    refuses("nowhere", {"nowhere does not exist", "expected the directory of a run"});
    refuses("empty", {"empty holds no run", "run.db"});
    refuses("file", {"file is not a directory"});
    refuses("strange", {"strange/run.db"});
    refuses("a nowhere", {"nowhere"});
    refuses("a -o missing/report.html", {"-o missing/report.html", "no directory missing"});
    refuses("a -o empty", {"-o empty", "choose another file"});
    refuses("a -o ''", {"-o"});
    refuses("a --port 70000", {"--port"});
    refuses("a --liv", {"--liv is not a flag", "--live"});
    EXPECT_NE(train("report --help").out.find("--live"), std::string::npos);
}

TEST_F(ReportProgram, IsServedToThisMachineAloneUntilCtrlC) {
    train("--run a --steps 3" + small);
    constexpr int port = 8937;
    std::string page, version, stranger, pointed_here;
    // The program is left to run beside the test by a shell that ends when it does.
    const std::string before =
        "\"$WOBBLE_TRAIN\" report a --live --port 8937 > served & pid=$!; "
        "for i in 1 2 3 4 5 6 7 8 9 10; do grep -q http served && break; sleep 0.2; done; "
        "\"$WOBBLE_TRAIN\" report a --live --port 8937 2> refused; echo $? > refused_status; "
        "touch ready; while [ ! -e asked ]; do sleep 0.05; done; kill -INT $pid; wait $pid; echo $? > "
        "status; ";
    std::thread other([&] {
        for (int i = 0; i < 400 && !std::filesystem::exists(path("ready")); ++i) usleep(20'000);
        const std::string host = "127.0.0.1:" + std::to_string(port);
        page = get(port, "/", host), version = get(port, "/version", "localhost:" + std::to_string(port));
        stranger = get(port, "/data", "example.org"), pointed_here = get(port, "/data", "");
        write("asked", "");
    });
    train("--version", before);
    other.join();
    EXPECT_NE(page.find("200 OK"), std::string::npos) << page.substr(0, 300);
    EXPECT_NE(page.find("<!DOCTYPE html>"), std::string::npos);
    EXPECT_NE(version.find("200 OK"), std::string::npos) << version;
    for (const std::string& refused : {stranger, pointed_here}) {
        EXPECT_NE(refused.find("HTTP/1.1 403"), std::string::npos) << refused.substr(0, 300);
        EXPECT_EQ(refused.find("curves"), std::string::npos);
    }
    EXPECT_EQ(read("status"), "0\n");
    EXPECT_NE(read("served").find("http://127.0.0.1:8937/"), std::string::npos) << read("served");
    EXPECT_EQ(read("refused_status"), "2\n");
    EXPECT_NE(read("refused").find("--port 8937 is in use"), std::string::npos) << read("refused");
}

}  // namespace
}  // namespace wobble::test
